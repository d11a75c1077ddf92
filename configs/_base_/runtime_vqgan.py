_base_ = './runtime_cls.py'
custom_imports = dict(imports=['mmlinattn.projects.vqgan'])
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=10000), logger=dict(interval=100))
log_processor = dict(by_epoch=False)
# A moving average of the weights is tested; no paper says whether theirs was.
custom_hooks = [dict(type='EMAHook', momentum=1e-4)]
