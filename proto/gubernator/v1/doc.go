// Package gubernatorv1 is what clients of gubernator speak: messages, client and
// server of its service pb.gubernator.V1, so that they can ask sluice instead. All but
// this comment is generated from gubernator.proto, which says what the fields mean here.
package gubernatorv1
