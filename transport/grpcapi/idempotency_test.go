package grpcapi

import "testing"

// TestIdempotencyKey: a charge is made once with a key, through a call and on a stream, and a key that does not fit is rejected.
// Nodes say that they have the feature.
func TestIdempotencyKey(t *testing.T) {
	openNode(t).play(t, `
		Nodes => self:"n1" nodes:{name:"n1" grpc_address:"127.0.0.1:7460"} features:"idempotency_key" features:"leases" features:"reservations"
		Check (x verb: VERB_CHARGE) idempotency_key: "k" requires: "idempotency_key" => ALLOWED 2/3 allowed:true
		CheckStream (x verb: VERB_CHARGE) idempotency_key: "k" => ALLOWED 2/3 allowed:true
		Check (x verb: VERB_CHARGE) idempotency_key: "k" => ALLOWED 2/3 allowed:true
		Check (x verb: VERB_CHARGE) idempotency_key: "k2" => ALLOWED 1/3 allowed:true
		CheckStream (x verb: VERB_CHARGE) idempotency_key: "k2" => ALLOWED 1/3 allowed:true
		Check (x) idempotency_key: "k" => InvalidArgument idempotency_key: is for charges and refunds, which the owner of a counter decides; send other verbs in a call without it
		CheckStream (x) idempotency_key: "k" => error:{code:ERROR_CODE_INVALID field:"idempotency_key" message:"is for charges and refunds, which the owner of a counter decides; send other verbs in a call without it"}
		Check (x verb: VERB_CHARGE) idempotency_key: "a key" => InvalidArgument idempotency_key: want at most 128 bytes of visible ASCII
	`)
}
