_base_ = './runtime_cls.py'
custom_imports = dict(imports=['mmlinattn.projects.video'])
