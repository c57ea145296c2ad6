# Underclock beside CUDA's runtime: doctor and measure, and your PyTorch steps taken apart where you
# add PyTorch: --build-arg EXTRAS=cuda,job,torch
#
#   make dist && docker build -f deploy/cuda.Dockerfile -t underclock:cuda .
#   docker run --rm --gpus all -e UNDERCLOCK_READ_ONLY=1 underclock:cuda doctor
#
# The driver and its NVML come from the host, by NVIDIA's container toolkit.
FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04

ARG EXTRAS=cuda,job
COPY dist/*.whl /tmp/
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3=3.12.* python3-venv=3.12.* \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/underclock \
 && /opt/underclock/bin/pip install --no-cache-dir --no-compile "$(echo /tmp/*.whl)[$EXTRAS]" \
 && rm /tmp/*.whl \
 && groupadd --gid 6470 underclock \
 && useradd --uid 6470 --gid 6470 --create-home underclock

ENV PATH=/opt/underclock/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 6470:6470
WORKDIR /app
ENTRYPOINT ["underclock"]
CMD ["doctor"]
