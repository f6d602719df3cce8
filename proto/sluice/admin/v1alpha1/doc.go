// Package adminv1alpha1 is the API of operators as gRPC carries it: messages, client and
// server of sluice.admin.v1alpha1. All but this comment is generated from admin.proto, which
// says what the fields mean.
package adminv1alpha1
