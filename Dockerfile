# One static binary, which has the time zones, and the CA certificates of public servers: no shell, no libraries.
# `make image` makes both first; see there for how.
FROM scratch
ARG BINARY=bin/image/sluice
COPY bin/image/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY ${BINARY} /sluice
# Numeric, so that Kubernetes can see that it is not root.
USER 65532:65532
# A container is reached from outside, or not at all. A node then wants a secret: SLUICE_SECRET_FILE.
ENV SLUICE_BIND=0.0.0.0
# gRPC, HTTP, peers, gossip.
EXPOSE 7460/tcp 7461/tcp 7462/tcp 7463/tcp 7463/udp
ENTRYPOINT ["/sluice"]
CMD ["serve"]
# Ready, or not and why; orchestrators with probes of their own pay no heed to it.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["/sluice", "health", "--timeout", "2s"]
