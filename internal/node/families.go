package node

import (
	"maps"
	"slices"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/limiter"
)

// families are the metrics of a node with their samples. Labels are bounded: by results, error codes and rules.
func (s *snapshot) families() []family {
	var m scrape
	m.nodeMetrics(s)
	m.checkMetrics(s)
	m.sourceMetrics(s)
	m.queueMetrics(s)
	m.counterMetrics(s)
	m.membershipMetrics(s)
	m.handoffMetrics(s)
	m.regionMetrics(s)
	m.snapshotMetrics(s)
	return m.list
}

// nodeMetrics adds readiness, rules and followed files.
func (m *scrape) nodeMetrics(s *snapshot) {
	m.gauges("sluice_build_info", "Always 1; the label is the version of the node.", "version")
	m.sample(1, s.version)
	m.gauge("sluice_ready", "1 while this node is ready for traffic.", flag(s.ready))
	m.gauge("sluice_rules_generation", "Number of times that rules came into force since the start; 0 without --rules.", float64(s.rules.Generation))
	m.gauge("sluice_rules_stale", "1 while the rule files are invalid and older rules are in force.", flag(s.rules.LastError != nil))
	m.gauge("sluice_rules", "Rules in force.", float64(s.service.InForce))
	m.gauge("sluice_rules_loaded_timestamp_seconds", "Time at which the rules in force were read, in Unix time; 0 without --rules.", unix(s.rules.LoadedAt))
	m.counter("sluice_rules_failures_total", "Different errors found in rule files.", s.rules.Failures)

	m.gauge("sluice_rules_skipped_files", "Files beside the rules that are not read because of their names; 101 for more than 100.", float64(len(s.rules.Skipped)))
	m.gauges("sluice_secrets_stale", "1 while files with certificates, keys or callers are invalid and older ones are in force.", "files")
	for _, f := range s.secrets {
		m.sample(flag(f.status.LastError != nil), f.label)
	}
	certificates := slices.DeleteFunc(slices.Clone(s.secrets), func(f secretStatus) bool { return f.expires.IsZero() })
	m.gauges("sluice_certificate_expiry_timestamp_seconds", "Time at which the certificate in force expires, in Unix time.", "files")
	for _, f := range certificates {
		m.sample(float64(f.expires.Unix()), f.label)
	}
	m.gauges("sluice_certificate_life_left_ratio", "Remaining part of the lifetime of the certificate in force, 1 to 0.", "files")
	for _, f := range certificates {
		m.sample(f.left, f.label)
	}
	m.counters("sluice_tls_handshakes_failed_total", "Failed TLS handshakes: a missing or invalid certificate, or a client without TLS.", "port")
	m.by("grpc", s.failedGRPC, "http", s.failedHTTP, "peer", s.failedPeer)
	m.counters("sluice_secrets_failures_total", "Different errors found in files with certificates, keys or callers.", "files")
	for _, f := range s.secrets {
		m.sample(float64(f.status.Failures), f.label)
	}
	m.counter("sluice_log_lines_lost_total", "Log lines that could not be written: nothing reads the pipe, or the disk is full.", s.lostLines)

	m.counters("sluice_callers_rejected_total", "Rejected calls, and single checks of calls, for which the caller has no permission, by API and reason.", "api", "reason")
	for _, r := range s.rejected {
		m.sample(float64(r.Count), r.API, r.Reason)
	}
}

// checkMetrics adds decisions of the APIs.
func (m *scrape) checkMetrics(s *snapshot) {
	m.counter("sluice_calls_total", "Calls of Check and Reset through any API.", s.service.Calls)
	m.durations("sluice_check_duration_seconds", "Time to decide a call, forwarding included, by API.", "api")
	for _, d := range s.service.APIs {
		m.times(d.Snapshot, d.API.String())
	}
	m.counters("sluice_answered_by_margin_total", "Checks answered without their owners before their callers' deadlines, by API and reason: deadline, "+
		"because the owner had not answered just before the deadline; circuit_open, because it had just let another check wait so.", "api", "reason")
	for api, reasons := range s.service.Early {
		for i, n := range reasons {
			m.sample(float64(n), limiter.API(api).String(), check.Early(i+1).String())
		}
	}
	m.counters("sluice_checks_total", "Checks by result: checks and reservations that were allowed, what was denied or shadowed of every verb, and the rest by verb. A check of cost 0 is a read.", "result")
	for i, n := range s.service.Results {
		if i != limiter.ResultError {
			m.sample(float64(n), limiter.ResultNames[i])
		}
	}
	r := &s.service.Reservations
	m.counters("sluice_reservations_total", "Reservations by result.", "result")
	m.by("reserved", r.Made, "denied", r.Denied)
	m.counters("sluice_settlements_total", "Settlements of reservations by result; unknown ones changed nothing.", "result")
	m.by("settled", r.Settled, "late", r.Late, "repeated", r.Repeated, "unknown", r.Unknown)
	m.counters("sluice_reservation_units_total", "Units of each check that were reserved, and that were charged by settlements.", "units")
	m.by("reserved", r.Reserved, "charged", r.Charged)
	m.counters("sluice_check_errors_total", "Checks without a decision, by reason.", "code")
	for code := limiter.Invalid; code.String() != limiter.Code(0).String(); code++ {
		m.sample(float64(s.service.Errors[code]), code.String())
	}
	m.counters("sluice_unmatched_checks_total", "Checks that no rule matches, in domains whose unmatched is not allow. All domains without rules are "+limiter.UnknownDomains+".", "domain")
	for _, domain := range slices.Sorted(maps.Keys(s.service.Unmatched)) {
		m.sample(float64(s.service.Unmatched[domain]), domain)
	}
	m.counters("sluice_rule_checks_total", "Checks by rule and result, as in sluice_checks_total, each series from the first such check on. The first rules have a label of their own; the others of a domain share the label other.", "domain", "rule", "result")
	m.rules(s.service.Rules)
	m.counters("sluice_descriptor_checks_total", "Checks of rules with detailed_metric or value_to_metric, by value and result, as in sluice_rule_checks_total. The first values since the last change of the rules have a label of their own; the others of a domain share the label other.", "domain", "descriptor", "result")
	m.rules(s.service.Descriptors)

	m.counters("sluice_pool_checks_total", "Checks beyond a rule's limits, by its pool and result.", "domain", "pool", "result")
	for _, p := range s.service.Pools {
		m.sample(float64(p.Admitted), p.Domain, p.Name, "elastic")
		m.sample(float64(p.Denied), p.Domain, p.Name, "denied")
	}
	m.gauges("sluice_pool_load", "Load in force for a pool on this node, 0 to 1.", "domain", "pool")
	for _, p := range s.service.Pools {
		m.sample(p.Load, p.Domain, p.Name)
	}
	m.gauges("sluice_pool_reporters", "Reporters with an unexpired load report for a pool on this node.", "domain", "pool")
	for _, p := range s.service.Pools {
		m.sample(float64(p.Reporters), p.Domain, p.Name)
	}
}

// sourceMetrics adds sources of decisions and forwarding.
func (m *scrape) sourceMetrics(s *snapshot) {
	c := &s.cluster
	m.counters("sluice_decisions_total", "Checks of this node's APIs by the source of the decision: this node as owner, "+
		"another owner, that owner's denial or lease remembered here, or a rule's on_failure because no owner was reached in time.", "source")
	m.by("owned", c.Owned, "forwarded", c.Forwarded, "remembered", c.Remembered, "lease", c.Leased, "eventual", c.Eventual.Decided, "share", c.Share, "closed", c.Closed, "open", c.Open,
		"unanswered", c.Unanswered, "overloaded", c.Overloaded)
	m.counters("sluice_partition_fallbacks_total", "Checks of this node's APIs that a rule's on_partition answered, because "+
		"this node is in the minority of a network partition.", "policy")
	m.by("share", c.MinorityShare, "closed", c.MinorityClosed, "open", c.MinorityOpen)
	m.counter("sluice_shares_charged_total", "Cost admitted as shares and charged to the owners of the keys later.", c.DeferredCharged)
	m.gauge("sluice_shares_deferred", "Keys with a deferred charge: units admitted as a share and not charged to the owner yet.", float64(c.Deferred))
	m.counter("sluice_shares_dropped_total", "Keys whose deferred charge was dropped because there were too many deferred charges.", c.DeferredForgotten)
	m.counter("sluice_shares_unknown_total", "Shares of keys without a remembered response of the owner: a share of the limit, or nothing, by unknown_share.",
		c.SharesUnknown)
	m.counter("sluice_forwards_total", "Checks sent to other nodes, retries included.", c.Forwards)
	m.counter("sluice_forwards_relayed_total", "Records that this node has relayed to their owners for nodes that cannot reach the owners.", c.Relayed)
	m.counter("sluice_forwards_coalesced_total", "Checks sent to other nodes in the record of an equal check.", s.pool.Merged)
	m.counter("sluice_lease_granted_units_total", "Units of hot keys that this node has granted as their owner, to itself included.", c.Granted)
	m.gauge("sluice_lease_granting_keys", "Keys owned here with live leases.", float64(c.Granting))
	m.counter("sluice_lease_leased_units_total", "Units that this node has leased: spent, returned, expired and live ones.",
		c.Leases.Granted)
	m.counter("sluice_lease_spent_units_total", "Leased units that checks have spent.", c.Leases.Spent)
	m.counter("sluice_lease_returned_units_total", "Leased units that this node has returned unspent.", c.Leases.Returned)
	m.counter("sluice_lease_expired_units_total", "Leased units that were unspent when their lease expired.", c.Leases.Expired)
	m.gauge("sluice_lease_live_units", "Leased units that this node may still spend.", float64(c.Leases.Live))
	m.gauge("sluice_lease_keys", "Hot keys on this node.", float64(c.Leases.Keys))
	m.counter("sluice_lease_denied_total", "Checks denied because the lease was used up and the owner had granted no more units just before.", c.Leases.Denied)
	m.gauge("sluice_eventual_keys", "Keys that this node decides locally, under consistency: eventual.", float64(c.Eventual.Keys))
	m.gauge("sluice_eventual_reported_keys", "Keys owned here for which other nodes report their own admissions.", float64(c.Eventual.Reported))
	m.gauge("sluice_eventual_lag_seconds", "Age of the oldest report without a response.", c.Eventual.Lag.Seconds())
	m.counter("sluice_eventual_sent_total", "Reports sent to other nodes, each of the units of one key.", c.Eventual.Sent)
	m.counter("sluice_eventual_received_total", "Reports received from other nodes, each of the units of one key.", c.Eventual.Received)
	m.counter("sluice_eventual_dropped_total", "Reports and responses dropped because a queue was full; the next ones include their units.", c.Eventual.Dropped)
	m.counter("sluice_eventual_charged_units_total", "Units of keys owned here that other nodes have admitted and reported.",
		c.Eventual.Charged)
	m.counter("sluice_eventual_excess_units_total", "Reported units beyond the limits of keys owned here.", c.Eventual.Over)
	m.counter("sluice_eventual_overflow_total", "Checks of eventual rules forwarded to the owner because this node decides too many other keys locally.", c.Eventual.Full)
	m.durations("sluice_forward_duration_seconds", "Time until another node responds to a call of one or many records from this node.")
	m.times(c.Forwarding)
	m.counter("sluice_forward_retries_total", "Attempts to find an owner that began after a wait.", c.Retries)
	m.counter("sluice_forward_redirects_total", "Responses of other nodes that they do not own the key.", c.Redirected)
	m.counter("sluice_forward_not_ready_total", "Responses of owners that they cannot decide at the moment, for example during a handoff.", c.NotReady)
	m.counter("sluice_forward_ambiguous_total", "Checks sent without a response; a retry of such a check may be charged twice.", c.Ambiguous)
	m.counter("sluice_served_total", "Checks of other nodes decided here.", c.Served)
	m.counter("sluice_served_not_owner_total", "Checks of other nodes for keys that are not owned here.", c.NotOwner)
	m.counter("sluice_served_not_ready_total", "Checks of other nodes that this owner could not decide at the moment.", c.ServedNotReady)
	m.counter("sluice_refunds_total", "Charges of failed atomic batches that were refunded.", c.Refunds)
	m.counter("sluice_refunds_lost_total", "Charges of failed atomic batches that could not be refunded.", c.RefundsLost+c.ChargesDropped)
}

// queueMetrics adds connections, queues and overload.
func (m *scrape) queueMetrics(s *snapshot) {
	m.gauge("sluice_peer_connections", "Peers that this node is connected to.", float64(s.pool.Peers))
	m.gauge("sluice_peer_queue_records", "Checks that wait to be sent to peers.", float64(s.pool.Waiting))
	m.counter("sluice_peer_frames_total", "Frames sent to peers.", s.pool.Frames)
	m.counter("sluice_peer_records_total", "Checks in the frames sent to peers.", s.pool.Records)
	m.counter("sluice_peer_overloaded_total", "Calls rejected because a peer's queue was full.", s.pool.Overloaded)
	m.counter("sluice_peer_dial_failures_total", "Attempts to connect to a peer that failed.", s.pool.Failed)
	m.counter("sluice_peer_broken_total", "Connections to peers that were lost.", s.pool.Broken)
	m.counter("sluice_peer_rejected_total", "Incoming peer streams with another protocol, placement or secret.", s.server.Rejected)
	m.counter("sluice_peer_malformed_total", "Incoming peer streams closed because of a malformed frame.", s.server.Malformed)

	m.gauges("sluice_connections", "Open connections, by port.", "port")
	for _, p := range s.ports {
		m.sample(float64(p.Open), p.port)
	}
	m.counters("sluice_connections_rejected_total", "Connections closed: too many (full), too many of one address (address), "+
		"no byte within 5 s (silent); or not accepted, usually because no file descriptor is left (error).", "port", "reason")
	for _, p := range s.ports {
		m.sample(float64(p.Full), p.port, "full")
		m.sample(float64(p.Crowded), p.port, "address")
		m.sample(float64(p.Silent), p.port, "silent")
		m.sample(float64(p.Failed), p.port, "error")
	}

	m.gauges("sluice_unfinished_bytes", "Bytes of incomplete messages, by port; on the peer port only of streams without a hello.", "port")
	m.sample(float64(s.unread.Held), "grpc")
	m.sample(float64(s.server.Unread.Held), "peer")
	m.counters("sluice_unfinished_calls_ended_total", "Calls ended because their message was not complete: after 10 s (deadline), too long for an unauthenticated "+
		"client (unknown), too many bytes held for one connection (connection) or for all (process). For stray, a connection was closed because it kept sending to ended calls. For memory, the message was complete, and would take "+
		"too much memory when it is decoded.", "port", "reason")
	for _, port := range []struct {
		name string
		inflow.Stats
	}{{"grpc", s.unread}, {"peer", s.server.Unread}} {
		for reason, n := range port.Ended.All() {
			m.sample(float64(n), port.name, reason)
		}
	}

	m.gauge("sluice_calls_in_progress", "Calls with checks that are being decided.", float64(s.load.Calls))
	m.gauge("sluice_wait_seconds", "Recent p90 of the waits of goroutines for a processor.", s.load.Wait.Seconds())
	m.gauge("sluice_waiting_goroutines", "Goroutines that are waiting for a processor.", float64(s.load.Waiting))
	m.gauge("sluice_rejecting", "Share of calls with checks that is rejected at the moment because work waits too long, 0 to 1.", s.load.Rejecting)
	m.counters("sluice_calls_rejected_total", "Calls with checks that were rejected: too many in progress (full), or work waited too long (slow).", "reason")
	m.by("full", s.load.Full, "slow", s.load.Slow)
	m.gauge("sluice_console_watchers", "Clients of the console's live stream on this node.", float64(s.watchers))
}

// counterMetrics adds counters.
func (m *scrape) counterMetrics(s *snapshot) {
	m.gauge("sluice_counters", "Counters held.", float64(s.table.Entries))
	m.gauge("sluice_counter_bytes", "Approximate memory of counters and their limits.", float64(s.table.Bytes))
	m.counter("sluice_counters_inserted_total", "Counters created.", s.table.Inserted)
	m.counter("sluice_counters_expired_total", "Counters removed because they had expired.", s.table.Expired+s.table.EvictedExpired)
	m.counter("sluice_counters_evicted_live_total", "Counters evicted before they expired: "+
		"each gave its key a fresh quota. Raise --memory-limit when this grows.", s.table.EvictedLive)
	m.counters("sluice_evicted_live_total", "Counters evicted before they expired, by domain: domains of the rules, up to 256 other domains with counters, and (other) for the rest.", "domain")
	for _, d := range s.domains {
		m.sample(float64(d.EvictedLive), d.Name)
	}
	m.gauges("sluice_domain_counters", "Counters held, by domain, as in sluice_evicted_live_total.", "domain")
	for _, d := range s.domains {
		m.sample(float64(d.Entries), d.Name)
	}
	m.counter("sluice_denied_full_total", "Checks of new keys that were denied because there was no room for a counter: see --when-full and max_keys.",
		s.table.DeniedFull)
	m.gauge("sluice_limit_sets", "Sets of limits that counters refer to, by domain, from rules and from inline limits; at 65,536, domains with more than their share are rejected new inline limits.",
		float64(s.table.Sets))
}

// membershipMetrics adds members and voters.
func (m *scrape) membershipMetrics(s *snapshot) {
	c := &s.cluster
	m.gauge("sluice_members", "Members in this node's view, itself included.", float64(s.gossip.Members))
	m.gauge("sluice_members_lost", "Members lost without leaving, which this node still tries to reach.", float64(s.gossip.Lost))
	m.counter("sluice_members_rejected_total", "Gossip from nodes with another placement or format.", s.gossip.Rejected)
	m.counter("sluice_gossip_malformed_total", "Messages on the gossip port that are malformed, or that none of this node's keys decrypts.",
		s.gossip.Malformed)
	m.counter("sluice_gossip_tcp_only_probes_total", "Probes of other nodes that were answered over TCP and not over UDP.", s.gossip.TCPOnly)
	m.gauges("sluice_gossip_keys", "Gossip keys in force; the label names the key that encrypts outgoing messages.", "primary")
	if s.gossip.Keys > 0 {
		m.sample(float64(s.gossip.Keys), s.gossip.Primary)
	}
	m.gauge("sluice_members_unauthenticated", "Processes in encrypted gossip that have not answered this node's challenge yet.",
		float64(s.gossip.Unproven))
	m.counter("sluice_gossip_streams_rejected_total", "Streams to the gossip port that were closed: too many, too long, or announcing a larger message than gossip sends.",
		s.gossip.RejectedStreams)
	m.counter("sluice_joins_total", "Attempts to reach join targets and lost members.", s.gossip.Joins)
	m.counter("sluice_joins_failed_total", "Attempts to reach join targets and lost members without a response.", s.gossip.JoinsFailed)
	m.gauge("sluice_gossip_health", "memberlist's score of this node: 0 is healthy, higher means missed answers.", float64(s.gossip.Health))
	m.counter("sluice_messages_total", "Control messages sent to other nodes.", s.pool.Posted)
	m.counter("sluice_messages_dropped_total", "Control messages dropped before sending, for a full queue or a missing connection, and on "+
		"arrival for a full queue. Necessary ones are sent again.", s.pool.Dropped+c.Dropped)

	m.gauge("sluice_quorum", "1 while this node has quorum: a majority of voters has acknowledged it recently.", flag(c.HasQuorum))
	m.gauge("sluice_voters", "Number of voters, the members of which majorities are counted.", float64(len(c.Set.Members)))
	m.gauge("sluice_voter_set_version", "Version of the voter set.", float64(c.Set.Version))
	m.gauge("sluice_peers_unreachable", "Members in gossip that this node does not hear over the peer port.", float64(c.Unreachable))
	m.counter("sluice_voter_set_write_errors_total", "Writes of the voter set to --data-dir that failed; until one succeeds the node has no quorum.",
		c.StoresFailed)
	m.counter("sluice_voter_sets_dissolved_total", "Voter sets that this node gave up for that of another cluster.", c.Dissolved)
}

// handoffMetrics adds partitions, handoffs and takeovers.
func (m *scrape) handoffMetrics(s *snapshot) {
	c := &s.cluster
	p := &s.cluster.Partitions
	m.gauge("sluice_partitions", "Partitions that this node owns.", float64(p.Owned))
	m.gauge("sluice_partitions_handing_over", "Partitions that are being handed over.", float64(p.HandingOver))
	m.gauge("sluice_partitions_taking_over", "Partitions without an owner that this node is taking over.", float64(p.TakingOver))
	m.gauge("sluice_partitions_unprotected", "Partitions owned here without a complete replica at a reachable node.",
		float64(p.Unprotected))
	m.gauge("sluice_partitions_below_replicas", "Partitions owned here with fewer complete replicas at reachable nodes than --replicas, or than other serving nodes.",
		float64(p.BelowReplicas))
	m.gauge("sluice_replica_partitions", "Replicas here of other nodes' partitions.", float64(p.Replicas))
	m.gauge("sluice_divergent", "Divergent states of partitions lost to another owner that has not merged them yet.", float64(p.Divergent))
	m.counters("sluice_handoffs_total", "Partitions handed over to another node, and received from one.", "direction")
	m.by("given", p.HandedOff, "taken", p.Received)
	m.counter("sluice_handoffs_rejected_total", "Handoffs that the next owner rejected; the partition stayed here.", p.HandoffsRejected)
	m.counter("sluice_takeovers_total", "Partitions taken over because they had no living owner.", p.Takeovers)
	m.counter("sluice_takeovers_fresh_total", "Partitions taken over without state at any node, as at the first start: their counters began at zero.", p.WithoutState)
	m.counter("sluice_takeovers_lost_state_total", "Partitions taken over without their known state: their counters are lost until the state is back.",
		p.Losses)
	m.gauge("sluice_partitions_lost_state", "Partitions owned here whose counters are lost: rules with on_lost_state: deny deny units that may have been spent.",
		float64(p.Lost))
	m.counter("sluice_lost_state_denied_total", "Checks of keys owned here that were denied because their counters are lost.", c.DeniedLost)
	m.counter("sluice_stepped_down_total", "Partitions that this node lost to a later owner, after a network partition or a pause.", p.SteppedDown)
	m.counter("sluice_merged_total", "Divergent states that the owners of the partitions have merged.", p.Merged)
	m.counter("sluice_freezes_total", "Times that a partition waited for its next owner during a handoff.", p.Freezes)
	m.seconds("sluice_freeze_seconds_total", "Total time that partitions waited for their next owner.", float64(p.FrozenNanos)/1e9)
	m.gauge("sluice_freeze_seconds_max", "Longest time that a partition waited for its next owner since the start.", float64(p.FrozenMax)/1e9)
	m.counter("sluice_initial_syncs_total", "Initial syncs of partitions begun from this node to others.", p.InitialSyncs)
	m.counter("sluice_transfer_batches_rejected_total", "Transfer batches that the receiving node rejected.", p.Rejected)
	m.counter("sluice_initial_syncs_damaged_total", "Initial syncs from other nodes that were unreadable or incomplete.", p.Damaged)
	m.counter("sluice_counters_too_large_total", "Times that a counter was left out of replication and handoffs because it is larger than a message: it has no replica.",
		p.TooLarge)
	m.counter("sluice_transferred_counters_total", "Counters sent to other nodes in replication and handoffs.", p.Counters)
	m.counter("sluice_transferred_bytes_total", "Bytes of the counters sent to other nodes in replication and handoffs.", p.Bytes)
}

// regionMetrics adds links to other regions.
func (m *scrape) regionMetrics(s *snapshot) {
	m.gauges("sluice_region_reachable", "1 while this node is linked to another region: a node of it answers, and nothing forbids sending to it.", "region")
	for _, r := range s.regions {
		m.sample(flag(r.State == facts.RegionLinked), r.Name)
	}
	m.gauges("sluice_region_unusable", "1 while nodes of another region answer this node, and something forbids sending to them: sluice regions has the reason.", "region")
	for _, r := range s.regions {
		m.sample(flag(r.State == facts.RegionUnusable), r.Name)
	}
	m.gauges("sluice_region_rtt_seconds", "Smoothed round trip to the farther of the nodes of another region that this node is connected to, as it was last; 0 if none was reached.", "region")
	for _, r := range s.regions {
		m.sample(r.RTT.Seconds(), r.Name)
	}
	m.counters("sluice_region_bytes_total", "Bytes on connections that this node has made to nodes of another region, TLS included.", "region", "direction")
	for _, r := range s.regions {
		m.sample(float64(r.In), r.Name, "in")
		m.sample(float64(r.Out), r.Name, "out")
	}
	c := &s.cluster
	m.counters("sluice_region_checks_total", "Checks of keys whose home is another region that this node has answered from units leased of the home, or has sent to the home.", "by")
	m.by("lease", c.HomeLeased, "home", c.HomeChecks)
	m.counter("sluice_region_lease_requests_total", "Requests for units that this node has sent to the home regions of keys.", c.HomeRequests)
	m.counter("sluice_region_rejected_checks_total", "Checks that this node has sent to the home region of their key and that were rejected there, because its rules have another home for it. on_failure has decided them.", c.HomeRejected)
	m.counters("sluice_key_moves_total", "Keys with home: auto that this node was to move to the region with most of their demand: they have moved, or stayed since the counter did not arrive there in 3 s.", "result")
	m.by("moved", c.KeysMoved, "stayed", c.KeysStayed)
}

// snapshotMetrics adds snapshots, traces, clocks and the ring.
func (m *scrape) snapshotMetrics(s *snapshot) {
	c := &s.cluster
	m.gauge("sluice_snapshot_timestamp_seconds", "Start of the last snapshot in --data-dir, in Unix time; 0 if there is none since this node's start.",
		unix(s.snapshots.at))
	m.gauge("sluice_snapshot_duration_seconds", "Time to write the last snapshot.", float64(int64(s.snapshots.took))/1e9)
	m.gauge("sluice_snapshot_bytes", "Size of the last snapshot.", float64(s.snapshots.totals.Bytes))
	m.gauge("sluice_snapshot_counters", "Counters in the last snapshot.", float64(s.snapshots.totals.Counters))
	m.counter("sluice_snapshots_total", "Snapshots written.", s.snapshots.written)
	m.counter("sluice_snapshots_failed_total", "Snapshots that could not be written; the previous snapshot stays.", s.snapshots.failed)
	m.counter("sluice_snapshots_rejected_total", "Unusable snapshots found at the start and set aside.", s.snapshots.rejected)
	m.gauge("sluice_snapshot_restored_counters", "Counters read from a snapshot at the start.", float64(s.snapshots.restored))

	m.counters("sluice_trace_spans_total", "Spans sent to the OpenTelemetry collector, failed, or dropped because too many were pending.", "result")
	m.by("sent", s.spans.sent, "failed", s.spans.failed, "dropped", s.spans.dropped)
	m.gauge("sluice_trace_spans_waiting", "Spans pending for the OpenTelemetry collector.", float64(s.spans.waiting))

	m.gauge("sluice_clock_skew_seconds", "Difference of this node's clock from the median of the voters whose clocks agree, positive if ahead; 0 while no majority agrees.",
		c.Clock.Ahead.Seconds())
	m.gauge("sluice_clock_correction_seconds", "Correction of this node's clock for new windows, because the clock is off by more than --max-clock-skew.",
		c.Clock.Correction.Seconds())
	m.gauge("sluice_clocks_disagree", "1 while no majority of the voters has clocks that agree within --max-clock-skew.",
		flag(c.Clock.Known && !c.Clock.Agree))

	m.counter("sluice_ring_builds_total", "Ring tables built.", c.RingBuilds)
	m.counter("sluice_views_rejected_total", "Membership views without a valid ring.", c.ViewsRejected)
}
