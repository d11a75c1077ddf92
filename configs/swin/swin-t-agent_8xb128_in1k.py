_base_ = './swin-t-focused_8xb128_in1k.py'

# Agent attention (cfgs/agent_swin_t.yaml, ATTN_TYPE AAAB, NUM 9-16-49-49).
model = dict(
    backbone=dict(
        attn_cfg=[
            dict(type='AgentAttention', num_agents=9, map_size=56),
            dict(type='AgentAttention', num_agents=16, map_size=28),
            dict(type='AgentAttention', num_agents=49, map_size=14),
            'WindowAttention',
        ],
    ),
)
