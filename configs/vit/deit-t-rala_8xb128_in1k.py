_base_ = './deit-t_8xb128_in1k.py'
# The gate is a linear projection (section 4.6 of the paper). Its table prints 6 M, which fits an
# identity gate too; its 1.1 G fit that better.
model = dict(backbone=dict(attn_cfg=dict(type='RALA', gate='proj')))

# The training script is not released. That of RAVLT, by the same authors, adds this to DeiT's.
custom_hooks = [dict(type='ModelEMAHook', momentum=1 - 0.99996**2, update_buffers=True)]
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1_best'))
