# fledge on a CPU. From the repository root:
#   docker build -f deploy/docker/cpu.Dockerfile -t fledge:cpu .
#   docker run -p 8080:8080 -v /models:/models:ro -v fledge-cache:/home/fledge/.cache fledge:cpu \
#       serve /models/my-llm --host 0.0.0.0 --port 8080
# The kernels are compiled on first use, for the processor they run on: that needs g++ at run time. A volume keeps them, and
# models from the hub; it is made with the owner of the image's folder, which is why that is there.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py constraints-cpu.txt README.md LICENSE ./
COPY src ./src
# The CPU build of torch has an index of its own; PyPI's would bring the CUDA packages.
RUN python -m venv /opt/fledge \
    && /opt/fledge/bin/pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        -c constraints-cpu.txt ".[gcs,s3,serve,train]"

FROM python:3.12-slim-bookworm
# Debian's own updates shall come in, so the version is the release's.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends -y g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 fledge \
    && install --directory --owner fledge --group fledge /home/fledge/.cache
COPY --from=build /opt/fledge /opt/fledge
ENV PATH=/opt/fledge/bin:$PATH \
    HF_HOME=/home/fledge/.cache/huggingface
USER 10001
WORKDIR /home/fledge
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=600s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["fledge"]
CMD ["--help"]
