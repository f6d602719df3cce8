// Package grpclimit holds gRPC servers and clients of Go to the limits of a sluice cluster, by
// interceptors: a server's refuse with RESOURCE_EXHAUSTED, and a client's wait.
//
// What is asked is made by Keys, of the peer's address, metadata, or the method. Who decides, and what
// happens when nobody does, is package client's.
package grpclimit
