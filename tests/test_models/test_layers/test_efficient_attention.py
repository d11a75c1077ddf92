from mmlinattn.models.layers import EfficientAttention


def softmax(x, dim):
    return x.exp() / x.exp().sum(dim, keepdim=True)


def test_equals_its_definition(defined_by, dims):
    def definition(q, k, v, places):
        weights = softmax(q, -1) @ softmax(k, -2).mT  # [h, n, n]
        assert (abs(weights.sum(-1) - 1) < 1e-12).all()
        return weights @ v

    defined_by(EfficientAttention(**dims), definition)
