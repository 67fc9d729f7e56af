# fledge beside SGLang on CUDA. From the repository root:
#   docker build -f deploy/docker/cuda.Dockerfile --build-arg SGLANG_TAG=TAG -t fledge:cuda .
#   docker run --gpus all --shm-size 16g -p 8080:8080 -v fledge-cache:/home/fledge/.cache -e HF_TOKEN fledge:cuda \
#       serve TARGET --head HEAD --engine sglang --python /usr/bin/python3 --host 0.0.0.0 --port 8080
# fledge has an environment of its own, so that its packages and SGLang's never meet; it starts SGLang as a command.
ARG SGLANG_TAG=v0.5.23
FROM lmsysorg/sglang:${SGLANG_TAG} AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
# torch comes with CUDA from the package index: the same image trains.
RUN python3 -m venv /opt/fledge \
    && /opt/fledge/bin/pip install --no-cache-dir ".[gcs,s3,serve,train]"

FROM lmsysorg/sglang:${SGLANG_TAG}
RUN useradd --create-home --uid 10001 fledge \
    && install --directory --owner fledge --group fledge /home/fledge/.cache
COPY --from=build /opt/fledge /opt/fledge
RUN ln -s /opt/fledge/bin/fledge /usr/local/bin/fledge
ENV HF_HOME=/home/fledge/.cache/huggingface
USER 10001
WORKDIR /home/fledge
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=1800s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["fledge"]
CMD ["--help"]
