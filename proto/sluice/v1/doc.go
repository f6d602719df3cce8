// Package sluicev1 is sluice's own API as gRPC carries it: messages, client and
// server of sluice.v1. All but this comment is generated from sluice.proto, which
// says what the fields mean.
package sluicev1
