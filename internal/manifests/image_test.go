package manifests

const imageName = "ghcr.io/sluice-project/sluice"
