"""Codes and losses of the quantiser against loops over tokens and codes."""

import pytest
import torch
import torch.nn.functional as F

from mmlinattn.checkpoints import CheckpointError, check_fits, save_checkpoint
from mmlinattn.projects.vqgan import VectorQuantizer
from mmlinattn.projects.vqgan import vector_quantizer as module


def test_codes_and_losses_of_the_definition():
    quantizer = VectorQuantizer(num_codes=11, code_dims=3, commitment=0.25)
    z = 5 * torch.randn(2, 7, 3)
    out = quantizer(z)
    codebook_loss = commitment_loss = 0.0
    for b in range(2):
        for n in range(7):
            token = z[b, n] / z[b, n].norm()
            distances = [(token - code / code.norm()).norm() for code in quantizer.codebook]
            best = min(range(11), key=lambda i: float(distances[i]))
            assert out.codes[b, n] == best
            nearest = quantizer.codebook[best] / quantizer.codebook[best].norm()
            torch.testing.assert_close(out.vectors[b, n], nearest)
            codebook_loss += float((token - nearest).square().sum()) / z.numel()
            commitment_loss += float((token - nearest).square().sum()) / z.numel()
    assert float(out.loss) == pytest.approx(codebook_loss + 0.25 * commitment_loss, rel=1e-5)


def test_gradients_of_both_losses_and_the_straight_through_estimate():
    quantizer = VectorQuantizer(num_codes=5, code_dims=4)
    z = torch.randn(1, 6, 4, requires_grad=True)
    out = quantizer(z)
    of_z, of_codes = torch.autograd.grad(out.loss, [z, quantizer.codebook], retain_graph=True)
    x, y = z.detach().requires_grad_(True), quantizer.codebook.detach().requires_grad_(True)
    unit = F.normalize(y, dim=-1)[out.codes]
    distance = (F.normalize(x, dim=-1) - unit).square().mean()
    wanted = torch.autograd.grad(distance, [x, y])
    torch.testing.assert_close(of_z, 0.25 * wanted[0])
    torch.testing.assert_close(of_codes, wanted[1])
    cotangent = torch.randn_like(z)
    (straight,) = torch.autograd.grad(out.vectors, z, cotangent)
    (wanted_straight,) = torch.autograd.grad(F.normalize(x, dim=-1), x, cotangent)
    torch.testing.assert_close(straight, wanted_straight)


def test_codes_do_not_depend_on_chunks_or_autocast(monkeypatch):
    quantizer, z = VectorQuantizer(num_codes=300, code_dims=8), torch.randn(2, 50, 8)
    codes = quantizer(z).codes
    with torch.autocast('cpu', dtype=torch.bfloat16):
        out = quantizer(z)
    assert out.codes.equal(codes) and out.vectors.dtype == torch.float32
    monkeypatch.setattr(module, 'MAX_SIMILARITIES', 900)
    assert quantizer(z).codes.equal(codes)
    torch.testing.assert_close(quantizer.vectors(codes), quantizer(z).vectors)


def test_a_codebook_of_another_size_is_named_with_the_cure(tmp_path):
    path = tmp_path / 'model.pth'
    save_checkpoint(path, VectorQuantizer(64, 8).state_dict(), {})
    wanted = (
        'codebook of the checkpoint has 64 codes of 8 dimensions, the model 32 of 8: codes cannot '
        'be resized; set model.quantizer.num_codes=64 and model.quantizer.code_dims=8'
    )
    with pytest.raises(CheckpointError, match=wanted):
        check_fits(path, VectorQuantizer(32, 8))
    with pytest.raises(ValueError, match=wanted):
        VectorQuantizer(32, 8).load_state_dict(VectorQuantizer(64, 8).state_dict())


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(num_codes=0), 'num_codes must be a positive integer, got 0'),
        (dict(code_dims=2.5), 'code_dims must be a positive integer, got 2.5'),
        (dict(commitment=-1), 'commitment must be a finite number of at least 0, got -1'),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        VectorQuantizer(**options)
