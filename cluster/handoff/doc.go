// Package handoff decides which partitions this process owns and which nodes have replicas: epochs, initial syncs,
// handoffs, takeovers and divergent copies; docs/internals/protocol.md has the rules. Whether the process may decide at all is up to
// cluster/quorum.
//
// Machine is a pure step function over a bucket.Table: it takes time, messages and the view as arguments, seals and opens
// shards, and leaves messages to send. It starts no goroutine and must be called from one; the table may be used
// concurrently.
//
// # Handoff
//
// A handoff moves a partition between two live processes, from the owner to the next owner, which the view assigns it to:
//
//  1. Initial sync: plan makes the assigned owner a target (addWanted, addTarget), or makes an existing replica the next owner
//     (makeNextOwner). packing.initialSyncs sends all counters. takeInitialSync receives them.
//  2. Changes: drain collects what was changed since, packing.changes sends it; the target's stage is complete.
//  3. Offer: queueClose queues the target in channel.closes once it has confirmed all known changes.
//  4. Close: packing.closes seals the shard and sends the last changes with a message.Close that names the next epoch
//     (generation + 1). The old owner is in phase inHandoff and no longer decides.
//  5. Open: takeClose checks epoch and checksum at the next owner, and becomeOwner opens the shard; the receipt says so.
//  6. Accepted: handoffAccepted turns the old owner's state into a replica. If the next owner rejected the close,
//     handoffRejected opens the partition again under a new epoch. If no receipt comes, the old owner stays sealed: the next
//     owner may have taken the close, so that only its announcement or a takeover ends the handoff.
//
// # Takeover
//
// A takeover makes a process the owner of partitions whose owner is lost. It claims many at once, in a claimRequest:
//
//  1. Find: continueClaims calls claimLost, if mayClaim, for partitions that have no live owner (ownerless) and that the view assigns
//     to this process.
//  2. Probe: sendClaims asks all others in stage probing whether they would grant the claim. answerClaim promises nothing
//     then, so that a claim that fails does not depose a live owner.
//  3. Claim: claimProbed sends the claim in stage requesting. answerClaim grants it: the granter acknowledges no heartbeat of
//     an owner that does not know of the grant (publishGrants). takeClaimResponse collects the grants, grantSelf adds the own one
//     last.
//  4. Wait: with hasAllGrants, stage waitingOut lasts until no acknowledgement by a granter can give another process quorum
//     (safeFrom).
//  5. Fetch: in stage fetching, the best state that a granter has offered is fetched (advanceClaim, takeFetch, takeAnswer),
//     unless it is the own one.
//  6. Complete: completeClaim notes which counters are missing (see loss), and becomeOwner opens the shard at the claimed epoch.
package handoff
