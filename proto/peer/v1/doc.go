// Package peerv1 is what nodes of one cluster say to each other. All but this
// comment is generated from peer.proto. It is no API: it changes with the nodes.
package peerv1
