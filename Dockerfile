# A Space with CPU or CUDA: torch's wheel carries its own CUDA runtime and runs without a GPU as well.
FROM python:3.11-slim-bookworm

RUN useradd --create-home --uid 1000 user
WORKDIR /app

COPY requirements.txt constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt -r requirements.txt

COPY --chown=user:user . .
RUN pip install --no-cache-dir --no-deps . \
    && mkdir -p /data && chown user:user /data /app

USER user
ENV HUBMERGE_DATA=/data \
    HOME=/home/user \
    GRADIO_ANALYTICS_ENABLED=False \
    PYTHONUNBUFFERED=1
# the merge kernels are compiled now rather than in a user's first job
RUN python -c "import hubmerge.compiled"

EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/config', timeout=4)"
CMD ["python", "app.py"]
