// Package manifests judges what deploy tells others to run: the Kubernetes
// manifests, as kustomize builds them, and the compose file. It decodes them
// strictly, looks for parts that do not fit together or that ask for more rights
// than a node needs, and holds the ports and settings in them against the flags of
// the binary itself.
//
// It is a module of its own, so that the types of Kubernetes, cert-manager and the operator of
// Prometheus, and Kubernetes' own rules of pod security, are downloaded by who works on sluice and
// never by who uses it. It starts no goroutine.
package manifests
