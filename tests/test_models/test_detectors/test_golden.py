"""SMCA with converted weights compared with recorded tensors of the released code."""

import pytest
import torch
import torch.nn.functional as F
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

from mmlinattn.models.detectors.smca_decoder import Memory

TOLERANCE = 1e-5


def close(ours, theirs, tolerance=TOLERANCE):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < tolerance


def tokens(x):
    return x.flatten(2).transpose(1, 2)


@pytest.fixture
def memory(released):
    tensors = released[0]
    return Memory(
        tensors['out.memory'].transpose(0, 1),
        (5, 7),
        tokens(tensors['in.pos_embed']),
        tensors['in.mask'].flatten(1),
    )


@torch.no_grad()
def test_encoder_with_softmax_attention_equals_the_release(released, memory):
    tensors, model = released
    ours = model.encoder(tokens(tensors['in.src']), (5, 7), memory.pos, memory.mask)
    close(ours, memory.tokens)


@torch.no_grad()
def test_transformer_and_head_equal_the_release(released):
    """Run the detector from backbone features and image sizes."""
    tensors, model = released
    samples = [
        DetDataSample(metainfo=dict(img_shape=(h, w), batch_input_shape=(160, 224)))
        for w, h in tensors['in.h_w'][0].tolist()
    ]
    inputs = model.forward_transformer((tensors['in.src'],), samples)
    close(inputs['hidden_states'], tensors['out.hs'])
    close(inputs['references'], tensors['out.points'])
    scores, boxes = model.bbox_head(**inputs)
    close(scores, tensors['out.outputs_class'])
    close(boxes, tensors['out.outputs_coord'])
    encoder_inputs, decoder_inputs = model.pre_transformer((tensors['in.src'],), samples)
    assert torch.equal(encoder_inputs['feat_mask'], tensors['in.mask'].flatten(1))
    close(encoder_inputs['feat_pos'], tokens(tensors['in.pos_embed']))
    assert decoder_inputs['image_sizes'].tolist() == tensors['in.h_w'][0].tolist()


@torch.no_grad()
def test_decoder_layer_by_layer(released, memory):
    tensors, model = released
    pos = tensors['in.query_embed'].expand(2, -1, -1)
    query = torch.zeros_like(pos)
    sizes = tensors['in.h_w'][0].float()
    points, reference = model.decoder.predict_points(query, pos, sizes)
    close(points, tensors['out.points'])
    close(reference, tensors['out.reference_cells'].transpose(0, 1))
    weights = record_attention_weights(model)
    for i, layer in enumerate(model.decoder.layers):
        features = layer.point_features(query, pos)
        close(features.transpose(0, 1), tensors[f'out.layer{i}.norm4'])
        close(layer.offset(features).transpose(0, 1), tensors[f'out.layer{i}.offset'])
        close(layer.scale(features).transpose(0, 1), tensors[f'out.layer{i}.scale_raw'])
        ours = layer.modulation(query, pos, reference, (5, 7))  # [B, heads, Q, N]
        theirs = tensors[f'out.layer{i}.gaussian'].unflatten(-1, (2, 8)).permute(2, 3, 0, 1)
        # The map reaches hundreds, in float32.
        assert ((ours - theirs) / (1 + theirs.abs())).abs().max() < TOLERANCE
        query = layer(query, pos, reference, memory)
        close(weights[-1], tensors[f'out.layer{i}.attn'])
        close(model.decoder.post_norm(query), tensors['out.hs'][i])


def record_attention_weights(model) -> list:
    """Record the attention weights of each layer, which SDPA does not return."""
    found = []

    def record(attn, args):
        query, key, _, modulation, mask = args
        weight, bias = attn.in_proj.weight.chunk(3), attn.in_proj.bias.chunk(3)
        q, k = (
            F.linear(x, w, b).unflatten(-1, (-1, attn.head_dim)).transpose(1, 2)
            for x, w, b in zip((query, key), weight, bias)
        )
        logits = q @ k.transpose(-2, -1) / attn.head_dim**0.5
        logits = logits.masked_fill(mask[:, None, None], float('-inf'))
        found.append((logits + modulation).softmax(-1))

    for layer in model.decoder.layers:
        layer.cross_attn.register_forward_pre_hook(record)
    return found


@pytest.fixture
def loss_case(golden):
    """Return recorded tensors and the inputs of the losses for images of one size."""
    tensors, _ = golden('smca_loss')
    size = torch.tensor([200.0, 100.0, 200.0, 100.0])
    instances, metas = [], []
    for i in range(2):
        cx, cy, w, h = tensors[f'in.image{i}.boxes'].unbind(-1)
        boxes = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1) * size
        instances.append(InstanceData(bboxes=boxes, labels=tensors[f'in.image{i}.labels']))
        metas.append(dict(img_shape=(100, 200)))
    return tensors, instances, metas


def test_losses_and_gradients(released, loss_case):
    tensors, instances, metas = loss_case
    head = released[1].bbox_head
    scores = tensors['in.pred_logits'].clone().requires_grad_()
    boxes = tensors['in.pred_boxes'].clone().requires_grad_()
    losses = head.loss_by_feat(scores[None], boxes[None], instances, metas)
    for ours, theirs in dict(cls='ce', bbox='bbox', iou='giou').items():
        expected = tensors[f'out.weighted.loss_{theirs}'].reshape(())
        loss = losses[f'loss_{ours}'].item()
        assert loss == pytest.approx(float(expected), abs=TOLERANCE)
    total = sum(loss.sum() for loss in losses.values())
    assert total.item() == pytest.approx(float(tensors['out.total']), abs=TOLERANCE)
    total.backward()
    close(scores.grad, tensors['out.grad.pred_logits'])
    close(boxes.grad, tensors['out.grad.pred_boxes'])


@torch.no_grad()
def test_matching(released, loss_case):
    tensors, instances, metas = loss_case
    head = released[1].bbox_head
    for i in range(2):
        inputs = tensors['in.pred_logits'][i], tensors['in.pred_boxes'][i]
        found = head._get_targets_single(*inputs, instances[i], metas[i])
        labels, _, targets, _, positive, _ = found
        assert torch.equal(positive, tensors[f'out.image{i}.query_index'])
        order = tensors[f'out.image{i}.target_index']
        assert torch.equal(labels[positive], tensors[f'in.image{i}.labels'][order])
        close(targets[positive], tensors[f'in.image{i}.boxes'][order])
