_base_ = 'mmdet::_base_/default_runtime.py'

custom_imports = dict(imports=['mmlinattn'])
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
