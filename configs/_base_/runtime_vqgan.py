_base_ = './runtime_cls.py'
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=10000), logger=dict(interval=100))
log_processor = dict(by_epoch=False)
# A moving average of the weights is tested; no paper says whether theirs was.
custom_hooks = [dict(type='EMAHook', momentum=1e-4)]
