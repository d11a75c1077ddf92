_base_ = './swin-t-agent_8xb128_in1k.py'

# cfgs/agent_swin_s.yaml, ATTN_TYPE AABB.
model = dict(
    backbone=dict(
        arch='s',
        attn_cfg=[
            dict(type='AgentAttention', num_agents=9, map_size=56),
            dict(type='AgentAttention', num_agents=16, map_size=28),
            'WindowAttention',
            'WindowAttention',
        ],
    ),
)
