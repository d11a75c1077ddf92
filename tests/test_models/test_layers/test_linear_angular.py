import math

from mmlinattn.models.layers import LinearAngularAttention


def l2_normalize(x):
    return x / x.square().sum(-1, keepdim=True).sqrt()


def test_paper_form(defined_by, dims):
    def definition(q, k, v, places):
        kernel = 0.5 + l2_normalize(q) @ l2_normalize(k).mT / math.pi
        return kernel @ v / (kernel.sum(-1, keepdim=True) + 1e-6)

    defined_by(LinearAngularAttention(**dims, form='paper'), definition)
