# On a CPU or a GPU, as torch's own packages bring CUDA's libraries along:
#   docker build -t mmlinattn .
#   docker run --rm -v "$PWD":/workspace mmlinattn predict CONFIG CHECKPOINT picture.jpg
#   docker run --rm -v "$PWD":/workspace --gpus all mmlinattn doctor
# With nvcc, for mmcv's own CUDA operators:
#   docker build -t mmlinattn --build-arg BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04 --build-arg MMCV_CUDA=1 .
ARG BASE=debian:12.12-slim
FROM ${BASE}

# OpenCV's libraries; a compiler, which Triton calls when a kernel first runs.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        g++ libgl1 libglib2.0-0 make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 mmlinattn \
    && install --directory --owner mmlinattn /opt/mmlinattn /workspace

USER 10001
WORKDIR /opt/mmlinattn
COPY --chown=10001 . .
# The pinned versions, by sha256 (docs/installation.md).
ARG MMCV=lite
ARG MMCV_CUDA=0
RUN PIP_NO_CACHE_DIR=1 make setup

ENV PATH=/opt/mmlinattn/.venv/bin:$PATH
WORKDIR /workspace
ENTRYPOINT ["mmlinattn"]
CMD ["--help"]
