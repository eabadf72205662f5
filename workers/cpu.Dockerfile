# The engine on CPUs, with the logits processor: docker build -f workers/cpu.Dockerfile .
FROM python:3.12-slim
# the compiler is for the code that PyTorch makes while it runs
RUN apt-get update && apt-get install -y --no-install-recommends curl g++ libnuma1 && rm -rf /var/lib/apt/lists/*
COPY requirements /requirements
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu -r /requirements/torch.txt && \
    pip install --no-cache-dir -r /requirements/engine.txt && \
    pip uninstall -y torchvision torchaudio torchcodec triton
COPY . /src
# constrained to what the image has, so that nothing under vLLM is replaced
RUN pip freeze --exclude-editable > /tmp/image.txt && pip install --no-cache-dir -c /tmp/image.txt /src && rm -rf /src
