"""The site: `make docs` makes it of the pages as they lie in the repository, links included."""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mmlinattn.version import __version__  # noqa: E402

project = 'MMLinAttn'
release = __version__
copyright = 'the authors of MMLinAttn, Apache-2.0'

# The whole repository is the source, so that a link from page to page is one from file to file.
root_doc = 'README'
NAVIGATION = {
    'Start': ['docs/tutorial', 'docs/installation'],
    'Do': [
        'docs/choose',
        'docs/own_data',
        'docs/own_backbone',
        'docs/fine_tune',
        'docs/segformer',
        'docs/zoo',
        'docs/weights',
        'docs/commercial_use',
        'docs/training',
        'docs/checkpoints',
        'docs/troubleshooting',
        'docs/linearize',
        'docs/read_results',
        'docs/predict',
        'docs/app',
        'docs/export',
        'docs/distributed',
        'docs/datasets',
    ],
    'Methods': [
        'RALA and RAVLT <configs/ravlt/README>',
        'MALA and MAViT <configs/mavit/README>',
        'MLLA (MILA) <configs/mlla/README>',
        'ViT³, H-ViT³ <configs/vittt/README>',
        'Linear decoders <configs/linear_decoders/README>',
        'Nuclei <configs/nuclei/README>',
        'Images of nuclei <demo/nuclei/README>',
        'Models of the quick start <configs/quickstart/README>',
        'RTMDet, ViTDet, Mask2Former <configs/modern_heads/README>',
        'Random walks: RWGKA, RWGKP <configs/rwgka/README>',
        'Ripple attention <configs/ripple/README>',
        'SMCA <configs/smca/README>',
        'SegFormer <configs/segformer/README>',
        'ViT, DeiT <configs/vit/README>',
        'DINOv2, DINOv3, CLIP, SigLIP <configs/dino/README>',
        'Swin <configs/swin/README>',
        'CvT <configs/cvt/README>',
        'ViL <configs/vil/README>',
        'Additive attention: FViT <configs/fvit/README>',
        'Reconstruction: ViT-VQGAN <configs/vqgan/README>',
        'Videos: TimeSformer <configs/timesformer/README>',
        'All attentions <docs/attentions>',
    ],
    'Extend': [
        'docs/own_attention',
        'docs/design',
        'CONTRIBUTING',
        'benchmarks/README',
        'benchmarks/study/README',
    ],
    'Evidence': [
        'docs/reproduce',
        'docs/studies',
        'docs/benchmarks',
    ],
    'Reference': [
        'docs/limits',
        'docs/glossary',
        'docs/reference/commands',
        'docs/reference/attentions',
        'docs/reference/rules',
        'docs/reference/sizes',
        'docs/reference/ops',
        'docs/reference/layers',
        'docs/reference/backbones',
        'docs/reference/necks',
        'docs/reference/detectors',
        'docs/reference/decode_heads',
        'docs/reference/segmentors',
        'docs/reference/generation',
        'docs/reference/video',
        'docs/reference/evaluation',
        'docs/reference/checkpoints',
        'docs/reference/datasets',
        'docs/reference/engine',
        'docs/reference/apis',
        'docs/reference/app',
        'docs/reference/deployment',
        'docs/reference/analysis',
        'docs/reference/linearize',
        'docs/reference/testing',
        'docs/reference/utils',
    ],
    'Project': ['SECURITY', 'Changes <CHANGELOG>'],
}
include_patterns = [
    '*.md',
    'docs/**.md',
    'docs/*.ipynb',
    'docs/reference/*.rst',
    'configs/[!_]*/README.md',
    'demo/nuclei/README.md',
    'benchmarks/**README.md',
    'mmlinattn/projects/*/README.md',
]
exclude_patterns = ['.*', 'build', 'checkpoints', 'data', 'dist', 'tests', 'work_dirs']

extensions = ['myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
myst_heading_anchors = 4  # named as the repository's host names them
suppress_warnings = ['toc.not_included']  # tables that a page links
nb_execution_mode = 'off'  # notebooks keep the outputs that the tests look at
highlight_language = 'none'  # of code that names none: what commands print
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # fields are described once
autodoc_inherit_docstrings = False  # those of the frameworks are in another style
autodoc_member_order = 'bysource'
autodoc_typehints_format = 'short'
python_maximum_signature_line_length = 80

html_theme = 'furo'  # system fonts, nothing from other servers
html_title = f'{project} {release}'
html_static_path = ['_static']
html_css_files = ['site.css']
html_copy_source = False
html_show_sphinx = False


def add_navigation(app, docname, source):
    """The site's contents, which the repository's host has no use for."""
    contents = []
    if docname == root_doc:
        contents = [[f':caption: {caption}', '', *pages] for caption, pages in NAVIGATION.items()]
    if docname in NAVIGATION['Evidence']:  # tables are in a folder of the same name
        contents = [[':glob:', '', f'{Path(docname).name}/*']]
    for lines in contents:
        source[0] += '\n'.join(['\n```{toctree}', ':hidden:', *lines, '```\n'])


def add_index(app, exception):
    """Servers of files show index.html first."""
    if exception is None:
        shutil.copyfile(Path(app.outdir, f'{root_doc}.html'), Path(app.outdir, 'index.html'))


def leave_out(app, what, name, member, skip, options):
    """Fields of a NamedTuple, whose docstring says its number alone."""
    return True if (member.__doc__ or '').startswith('Alias for field number') else None


def setup(app):
    app.connect('autodoc-skip-member', leave_out)
    app.connect('source-read', add_navigation)
    app.connect('build-finished', add_index)
