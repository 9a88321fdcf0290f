# For Docker Spaces, Jobs and machines of one's own, with CUDA or without: torch's wheel carries its own CUDA runtime and
# runs without a GPU as well.
FROM python:3.12-slim-bookworm

# a compiler, for the fast pass and for packages that come as source; uid 1000, as which Spaces run what they are given
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 user
WORKDIR /app

COPY requirements.txt constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt -r requirements.txt

# the code belongs to root, so that no job changes it
COPY pyproject.toml setup.py README.md LICENSE app.py ./
COPY hubmerge hubmerge
COPY localhub localhub
COPY workflows workflows
COPY examples examples
COPY docs/api.md docs/glossary.md docs/
RUN pip install --no-cache-dir --no-deps --editable . \
    && python -m compileall -q hubmerge localhub workflows \
    && install -d -o user -g user /data

# the number, by which Kubernetes sees that it is not root (runAsNonRoot)
USER 1000
ENV HUBMERGE_DATA=/data \
    HOME=/home/user \
    USER=user \
    GRADIO_ANALYTICS_ENABLED=False \
    PYTHONUNBUFFERED=1
# a merge of the example agents shows that the image merges
RUN hubmerge merge examples/recipes/ram_plus.yaml --out /tmp/merged && rm -r /tmp/merged

EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/config', timeout=4)"
CMD ["python", "app.py"]
