# The images of caretaker: `probe`, which every node pulls where an IMDSPolicy is verified, and `operator`, the default.
# For amd64 and arm64 alike, either built on the other without emulation: what runs here runs on the builder's own
# platform, and the images' stages only copy. Nothing is compiled (docs/image.md has commands, sizes, contents). Each
# base has its platform: to buildah 1.28 it would be that of the stage before.
#
# Order: what changes least comes first. Of an upgrade that changes no dependency a node pulls one layer, the last.
# The same input gives the same files: every package is locked with its hash, bytecode holds no times
# (PEP 552), and `--timestamp` of buildah or SOURCE_DATE_EPOCH with `rewrite-timestamp=true` of buildx set the rest.
ARG PYTHON=docker.io/library/python:3.13-slim-bookworm
ARG PYTHON_SMALL=docker.io/library/python:3.13-alpine

# ---- tools: what builds; no file of it gets into an image
# Bytecode without columns is a fifth smaller, in the image and in memory; tracebacks still have lines.
FROM --platform=$BUILDPLATFORM ${PYTHON} AS tools
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONNODEBUGRANGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 \
    UV_NO_CACHE=1 UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
COPY dev/image/tools.txt /build/
RUN python3 -m venv /opt/tools && /opt/tools/bin/python -m pip install --quiet --require-hashes -r /build/tools.txt
WORKDIR /build

# ---- locked: the lock file's part that runs, so that an edit elsewhere in it or in pyproject.toml changes no layer
FROM tools AS locked
COPY pyproject.toml uv.lock ./
RUN /opt/tools/bin/uv export --quiet --frozen --no-dev --no-emit-project --no-header -o requirements.txt

# ---- dependencies: the target's wheels, for the glibc of PYTHON, by hash. Bytecode is the same on all platforms; there is
# none of the Kubernetes client's typed models: never imported, 50 MB
FROM tools AS dependencies
COPY --from=locked /build/requirements.txt ./
ARG TARGETARCH
RUN case "$TARGETARCH" in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; \
      *) echo "TARGETARCH=$TARGETARCH: amd64 or arm64 is wanted, of BuildKit, buildah or podman" >&2; exit 1 ;; esac \
 && /opt/tools/bin/uv venv --quiet --python python3 /opt/caretaker \
 && /opt/tools/bin/uv pip install --quiet --python /opt/caretaker/bin/python --python-platform $machine-manylinux_2_36 \
      --require-hashes --no-deps --only-binary :all: -r requirements.txt \
 && echo /opt/caretaker/app > "$(/opt/caretaker/bin/python -c 'import site; print(site.getsitepackages()[0])')/caretaker.pth" \
 && /opt/caretaker/bin/python -m compileall -q --invalidation-mode unchecked-hash \
      -x '/kubernetes/(aio|client/(api|models))/.*(?<!__init__)[.]py$' /opt/caretaker/lib

# ---- app: our own code, and the list of all that is installed; without uv's note of when the wheel was built
FROM dependencies AS app
COPY LICENSE README.md pyproject.toml ./
COPY crds crds
COPY operator operator
RUN /opt/tools/bin/python -m hatchling build -t wheel \
 && /opt/tools/bin/uv pip install --quiet --python /opt/caretaker/bin/python --no-deps --offline \
      --target /opt/caretaker/app dist/*.whl \
 && rm -f /opt/caretaker/app/caretaker-*.dist-info/uv_cache.json \
 && sed -i '/uv_cache[.]json/d' /opt/caretaker/app/caretaker-*.dist-info/RECORD \
 && /opt/caretaker/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/caretaker/app
COPY dev/sbom.py ./
RUN /opt/caretaker/bin/python sbom.py --output sbom/operator/caretaker.cdx.json \
 && /opt/caretaker/bin/python sbom.py --part caretaker_probe --output sbom/probe/caretaker-probe.cdx.json

# ---- users, users-small: the user of the images, beside those of each base
FROM --platform=$BUILDPLATFORM ${PYTHON} AS users
RUN echo 'caretaker:x:65532:65532:caretaker:/nonexistent:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'caretaker:x:65532:' >> /etc/group
FROM --platform=$BUILDPLATFORM ${PYTHON_SMALL} AS users-small
RUN echo 'caretaker:x:65532:65532:caretaker:/nonexistent:/sbin/nologin' >> /etc/passwd \
 && echo 'caretaker:x:65532:' >> /etc/group

# ---- probe: the standard library and five files
FROM --platform=$TARGETPLATFORM ${PYTHON_SMALL} AS probe
COPY --from=users-small /etc/passwd /etc/group /etc/
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONPATH=/opt/caretaker
COPY --from=app /build/sbom/probe /usr/share/sbom
COPY --from=app /opt/caretaker/app/caretaker_probe /opt/caretaker/caretaker_probe
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="caretaker-probe" \
      org.opencontainers.image.description="Tells from inside a pod whether EC2's instance metadata service answers there" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
ENTRYPOINT ["python3", "-m", "caretaker_probe"]

# ---- operator
FROM --platform=$TARGETPLATFORM ${PYTHON} AS operator
# kopf asks for the name of the user that it runs as: a uid without one ends it.
COPY --from=users /etc/passwd /etc/group /etc/
# The root file system may be read-only, so no bytecode is written at run time: it is in the image.
ENV PATH=/opt/caretaker/app/bin:/opt/caretaker/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
COPY --from=dependencies /opt/caretaker /opt/caretaker
COPY --from=app /build/sbom/operator /usr/share/sbom
COPY --from=app /opt/caretaker/app /opt/caretaker/app
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="caretaker" \
      org.opencontainers.image.description="A Kubernetes operator: DaemonTask, S3AggregatedRefresh, IMDSPolicy" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
# 8080 metrics, 8081 health
EXPOSE 8080 8081
ENTRYPOINT ["caretaker"]
CMD ["run"]
