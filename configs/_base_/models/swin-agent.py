# Swin with agent attention for dense models, as released: the grids of agents are larger than on
# ImageNet, whose biases are resized.
agents = [
    dict(type='AgentAttention', num_agents=9, map_size=56, agent_grid=9),
    dict(type='AgentAttention', num_agents=16, map_size=28, agent_grid=12),
    dict(type='AgentAttention', num_agents=49, map_size=14, agent_grid=14),
]
swin_t_agent = dict(
    type='Swin',
    arch='t',
    attn_cfg=[*agents, 'WindowAttention'],
    # Trained by swin-t-agent_8xb128_in1k.py, see README.md.
    init_cfg=dict(
        type='Pretrained', checkpoint='checkpoints/swin-t-agent_in1k.pth', prefix='backbone.'
    ),
)
swin_s_agent = dict(
    arch='s',
    attn_cfg=[*agents[:2], 'WindowAttention', 'WindowAttention'],
    init_cfg=dict(checkpoint='checkpoints/swin-s-agent_in1k.pth'),
)
agent_undecayed = dict(
    custom_keys={
        key: dict(decay_mult=0.0) for key in ('norm', '.relative_bias', '.key_bias', '.query_bias')
    }
)
