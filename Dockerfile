# hud up as a container image: runs as a user without privileges, with the dependencies of requirements.lock and no others.
#   docker build -t openhud .
#   docker run -p 127.0.0.1:8000:8000 -v openhud:/data openhud
FROM python:3.12-slim AS build
WORKDIR /build
RUN python -m venv /opt/hud
COPY requirements.lock ./
RUN /opt/hud/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock
COPY pyproject.toml README.md LICENSE mkdocs.yml constraints.txt ./
COPY docs docs
COPY scripts/site scripts/site
COPY packages packages
RUN python -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir --constraint constraints.txt \
        hatchling==1.33.0 mkdocs mkdocs-material 'mkdocstrings[python]' ruff \
    && /opt/build/bin/python -m hatchling build --target wheel --directory /tmp/wheel \
    && /opt/hud/bin/pip install --no-cache-dir --no-deps --no-index /tmp/wheel/openhud-*.whl

FROM python:3.12-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin hud \
    && install --directory --owner hud --group hud --mode 0700 /data
COPY --from=build /opt/hud /opt/hud
ENV PATH=/opt/hud/bin:$PATH HUD_HOME=/data PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["hud"]
CMD ["up", "--host", "0.0.0.0"]
