package node

import (
	"maps"
	"slices"

	"github.com/sluice-project/sluice/internal/inflow"
	"github.com/sluice-project/sluice/limiter"
)

// families are the metrics of a node with their samples, in the order of the questions that they
// answer. Labels are bounded: by results, error codes and rules.
func (s *snapshot) families() []family {
	var m scrape
	m.serving(s)
	m.deciding(s)
	m.answering(s)
	m.waiting(s)
	m.holding(s)
	m.knowing(s)
	m.moving(s)
	m.keeping(s)
	return m.list
}

// serving has whether the node serves, and the files that it follows.
func (m *scrape) serving(s *snapshot) {
	m.gauges("sluice_build_info", "Always 1; the label says which version runs.", "version")
	m.sample(1, s.version)
	m.gauge("sluice_ready", "1 when this node takes traffic.", flag(s.ready))
	m.gauge("sluice_rules_generation", "Sets of rules that came into force since the start; 0 without --rules.", float64(s.rules.Generation))
	m.gauge("sluice_rules_stale", "1 while the rule files have a fault and older rules are in force.", flag(s.rules.LastError != nil))
	m.gauge("sluice_rules", "Rules in force.", float64(len(s.service.Rules)))
	m.gauge("sluice_rules_loaded_timestamp_seconds", "When the rules in force were read, in Unix time; 0 without --rules.", unix(s.rules.LoadedAt))
	m.counter("sluice_rules_failures_total", "Different faults found in rule files.", s.rules.Failures)

	m.gauge("sluice_rules_skipped_files", "Files beside the rules that are not read: their names are not those of rule files; 101 for more than 100.",
		float64(len(s.rules.Skipped)))

	m.gauges("sluice_secrets_stale", "1 while files with certificates, keys or callers have a fault and older ones are in force.", "files")
	for _, f := range s.secrets {
		m.sample(flag(f.status.LastError != nil), f.label)
	}
	m.gauges("sluice_certificate_expiry_timestamp_seconds", "When the certificate in force ends, in Unix time.", "files")
	for _, f := range s.secrets {
		if !f.expires.IsZero() {
			m.sample(float64(f.expires.Unix()), f.label)
		}
	}
	m.gauges("sluice_certificate_life_left_ratio", "How much of the life of the certificate in force is left, 1 to 0.", "files")
	for _, f := range s.secrets {
		if !f.expires.IsZero() {
			m.sample(f.left, f.label)
		}
	}
	m.counters("sluice_tls_handshakes_failed_total", "Connections that ended in the TLS handshake: no certificate or a wrong one, or no TLS.", "port")
	m.by("grpc", s.failedGRPC, "http", s.failedHTTP, "peer", s.failedPeer)
	m.counters("sluice_secrets_failures_total", "Different faults found in files with certificates, keys or callers.", "files")
	for _, f := range s.secrets {
		m.sample(float64(f.status.Failures), f.label)
	}

	m.counters("sluice_callers_rejected_total", "Calls, and checks among others of a call, that their caller may not make, by API and reason.", "api", "reason")
	for _, r := range s.rejected {
		m.sample(float64(r.Count), r.API, r.Reason)
	}
}

// deciding has what it decides.
func (m *scrape) deciding(s *snapshot) {
	m.counter("sluice_calls_total", "Calls of Check and Reset through any API.", s.service.Calls)
	m.durations("sluice_check_duration_seconds", "Time to decide a call, forwarding included, by the API that it came in by.", "api")
	for _, d := range s.service.APIs {
		m.times(d.Snapshot, d.API.String())
	}
	m.counters("sluice_checks_total", "Checks by result.", "result")
	m.by("allowed", s.service.Allowed, "denied", s.service.Denied, "shadowed", s.service.Shadowed)
	m.counters("sluice_check_errors_total", "Checks without a decision, by reason.", "code")
	for code := limiter.Invalid; code.String() != limiter.Code(0).String(); code++ {
		m.sample(float64(s.service.Errors[code]), code.String())
	}
	m.counters("sluice_unmatched_checks_total", "Checks that no rule matches: nothing limits them. All domains without rules are "+limiter.UnknownDomains+".", "domain")
	for _, domain := range slices.Sorted(maps.Keys(s.service.Unmatched)) {
		m.sample(float64(s.service.Unmatched[domain]), domain)
	}
	m.counters("sluice_rule_checks_total", "Checks by rule and result.", "domain", "rule", "result")
	m.rules(s.service.Rules)
	m.counters("sluice_descriptor_checks_total", "Checks of rules with detailed_metric or value_to_metric by the values that came, and result. Those that came first since the rules changed have a name; the rest of a domain is other.", "domain", "descriptor", "result")
	m.rules(s.service.Descriptors)

	m.counters("sluice_pool_checks_total", "Checks beyond a rule's limits, by its pool and what that answered.", "domain", "pool", "result")
	for _, p := range s.service.Pools {
		m.sample(float64(p.Admitted), p.Domain, p.Name, "elastic")
		m.sample(float64(p.Denied), p.Domain, p.Name, "denied")
	}
	m.gauges("sluice_pool_load", "The load that counts for a pool on this node, 0 to 1.", "domain", "pool")
	for _, p := range s.service.Pools {
		m.sample(p.Load, p.Domain, p.Name)
	}
	m.gauges("sluice_pool_reporters", "Reporters whose load counts for a pool on this node.", "domain", "pool")
	for _, p := range s.service.Pools {
		m.sample(float64(p.Reporters), p.Domain, p.Name)
	}
}

// answering has who decides, here and at other nodes.
func (m *scrape) answering(s *snapshot) {
	c := &s.cluster
	m.counters("sluice_answers_total", "Checks of this node's APIs by who answered: the node itself, another that "+
		"holds the key, this node by what that one had denied just before or has granted it, or a rule's on_failure because no owner was reached in time.", "source")
	m.by("held", c.Held, "forwarded", c.Forwarded, "remembered", c.Remembered, "lease", c.Leased, "eventual", c.Eventual.Decided, "share", c.Share, "closed", c.Closed, "open", c.Open,
		"unanswered", c.Unanswered, "overloaded", c.Overloaded)
	m.counters("sluice_partition_answers_total", "Checks of this node's APIs that a rule's on_partition answered, because "+
		"this node is cut off from the majority.", "answer")
	m.by("share", c.MinorityShare, "closed", c.MinorityClosed, "open", c.MinorityOpen)
	m.counter("sluice_shares_charged_total", "Cost admitted as shares and charged to the keys' owners later.", c.Settled)
	m.gauge("sluice_shares_deferred", "Keys of which a share is still to be charged to the owner.", float64(c.Deferred))
	m.counter("sluice_shares_forgotten_total", "Keys of which that was given up, because there were too many.", c.DeferredForgotten)
	m.counter("sluice_shares_unknown_total", "Shares given of keys of which this node remembers no answer of the owner: a part of the limit, or nothing, by unknown_share.",
		c.SharesUnknown)
	m.counter("sluice_forwards_total", "Checks sent to other nodes, retries included.", c.Forwards)
	m.counter("sluice_forwards_relayed_total", "Records that this node has asked their owners for, for nodes that do not hear these.", c.Relayed)
	m.counter("sluice_forwards_combined_total", "Checks sent to other nodes in the record of an equal one.", s.pool.Merged)
	m.counter("sluice_lease_granted_units_total", "Units of hot keys that this node has granted as their owner, to itself included.", c.Granted)
	m.gauge("sluice_lease_granting_keys", "Keys held here of which somebody leases.", float64(c.Granting))
	m.counter("sluice_lease_leased_units_total", "Units that this node has leased. They were spent, returned, or have expired, or are live.",
		c.Leases.Granted)
	m.counter("sluice_lease_spent_units_total", "Units that checks have spent of leases.", c.Leases.Spent)
	m.counter("sluice_lease_returned_units_total", "Units that this node has returned, because nobody was going to spend them.", c.Leases.Returned)
	m.counter("sluice_lease_expired_units_total", "Units that nobody has spent until the lease was over.", c.Leases.Expired)
	m.gauge("sluice_lease_live_units", "Units that this node may spend.", float64(c.Leases.Live))
	m.gauge("sluice_lease_keys", "Keys that are hot here.", float64(c.Leases.Keys))
	m.counter("sluice_lease_denied_total", "Checks that found a lease used up, and its owner without more just before.", c.Leases.Denied)
	m.gauge("sluice_eventual_keys", "Keys that this node decides by itself, under consistency: eventual.", float64(c.Eventual.Keys))
	m.gauge("sluice_eventual_reported_keys", "Keys held here of which nodes report what they have admitted by themselves.", float64(c.Eventual.Reported))
	m.gauge("sluice_eventual_lag_seconds", "For how long the oldest report has been without an answer.", c.Eventual.Lag.Seconds())
	m.counter("sluice_eventual_sent_total", "Sums of one key each reported to other nodes.", c.Eventual.Sent)
	m.counter("sluice_eventual_received_total", "Sums of one key each reported by other nodes.", c.Eventual.Received)
	m.counter("sluice_eventual_dropped_total", "Reports and answers that met a full queue; the next ones make up for them.", c.Eventual.Dropped)
	m.counter("sluice_eventual_charged_units_total", "What nodes have admitted by themselves of keys held here, as they have reported it.",
		c.Eventual.Charged)
	m.counter("sluice_eventual_excess_units_total", "How much of that went beyond the keys' limits.", c.Eventual.Over)
	m.counter("sluice_eventual_overflow_total", "Checks that were left to the owner, because this node decides too many other keys.", c.Eventual.Full)
	m.durations("sluice_forward_duration_seconds", "Time that another node took to answer a call of this one, of one or many records.")
	m.times(c.Forwarding)
	m.counter("sluice_forward_retries_total", "Attempts to find an owner that began after a wait.", c.Retries)
	m.counter("sluice_forward_redirects_total", "Answers of other nodes that they do not hold the key.", c.Redirected)
	m.counter("sluice_forward_laters_total", "Answers of owners that they cannot decide just now, in a hand-off for example.", c.Later)
	m.counter("sluice_forward_ambiguous_total", "Checks sent without an answer; a retry of theirs may be charged twice.", c.Ambiguous)
	m.counter("sluice_served_total", "Checks of other nodes decided here.", c.Served)
	m.counter("sluice_served_not_owner_total", "Checks of other nodes for keys that are not held here.", c.NotOwner)
	m.counter("sluice_served_later_total", "Checks of other nodes that could not be decided here just then.", c.ToldLater)
	m.counter("sluice_give_backs_total", "Charges of failed all-or-nothing calls that were given back.", c.GaveBack)
	m.counter("sluice_give_backs_lost_total", "Such charges that could not be given back and stand.", c.GiveBacksLost+c.HeldDropped)
}

// waiting has connections, and what waits.
func (m *scrape) waiting(s *snapshot) {
	m.gauge("sluice_peer_connections", "Peers connected to.", float64(s.pool.Peers))
	m.gauge("sluice_peer_queue_records", "Checks that wait to be sent to peers.", float64(s.pool.Waiting))
	m.counter("sluice_peer_frames_total", "Frames sent to peers.", s.pool.Frames)
	m.counter("sluice_peer_records_total", "Checks in those frames.", s.pool.Records)
	m.counter("sluice_peer_overloaded_total", "Calls rejected because a peer's queue was full.", s.pool.Overloaded)
	m.counter("sluice_peer_dial_failures_total", "Attempts to connect to a peer that failed.", s.pool.Failed)
	m.counter("sluice_peer_broken_total", "Connections to peers that were lost.", s.pool.Broken)
	m.counter("sluice_peer_rejected_total", "Incoming peer streams with another protocol, placement or secret.", s.server.Rejected)
	m.counter("sluice_peer_malformed_total", "Incoming peer streams ended because of a frame that was not understood.", s.server.Malformed)

	m.gauges("sluice_connections", "Connections to this node's ports now, by port.", "port")
	for _, p := range s.ports {
		m.sample(float64(p.Open), p.port)
	}
	m.counters("sluice_connections_rejected_total", "Connections closed: too many (full), too many of one address (address), "+
		"nothing said within 5 s (silent); or not accepted yet, most often because no file descriptor is left (error).", "port", "reason")
	for _, p := range s.ports {
		m.sample(float64(p.Full), p.port, "full")
		m.sample(float64(p.Crowded), p.port, "address")
		m.sample(float64(p.Silent), p.port, "silent")
		m.sample(float64(p.Failed), p.port, "error")
	}

	m.gauges("sluice_unfinished_bytes", "Bytes of messages that are not complete, by port; on the peer port of streams that have not said hello.", "port")
	m.sample(float64(s.unread.Held), "grpc")
	m.sample(float64(s.server.Unread.Held), "peer")
	m.counters("sluice_unfinished_calls_ended_total", "Calls ended because their message was not complete: after 10 s (deadline), too long for an unauthenticated "+
		"client (unknown), too much held of one connection (connection) or of all (process). For stray a connection was closed, which went on sending to calls that had ended.", "port", "reason")
	for _, port := range []struct {
		name string
		inflow.Stats
	}{{"grpc", s.unread}, {"peer", s.server.Unread}} {
		for reason, n := range port.Ended.All() {
			m.sample(float64(n), port.name, reason)
		}
	}

	m.gauge("sluice_calls_in_progress", "Calls with checks that are being decided.", float64(s.load.Calls))
	m.gauge("sluice_wait_seconds", "What nine in ten goroutines did not wait longer for a processor than, of late.", s.load.Wait.Seconds())
	m.gauge("sluice_waiting_goroutines", "Goroutines that wait for a processor now.", float64(s.load.Waiting))
	m.gauge("sluice_rejecting", "The part of calls with checks that is rejected now because work waits too long, 0 to 1.", s.load.Rejecting)
	m.counters("sluice_calls_rejected_total", "Calls with checks that were rejected: too many in progress (full), or work waited too long (slow).", "reason")
	m.by("full", s.load.Full, "slow", s.load.Slow)
	m.gauge("sluice_console_watchers", "Pages and others that watch the cluster through this node now.", float64(s.watchers))
}

// holding has what is held.
func (m *scrape) holding(s *snapshot) {
	m.gauge("sluice_counters", "Counters held.", float64(s.table.Entries))
	m.gauge("sluice_counter_bytes", "Approximate memory of the counters held and of their limits.", float64(s.table.Bytes))
	m.counter("sluice_counters_inserted_total", "Counters made.", s.table.Inserted)
	m.counter("sluice_counters_expired_total", "Counters removed because they were wholly free again.", s.table.Expired+s.table.EvictedExpired)
	m.counter("sluice_counters_evicted_live_total", "Counters evicted although they still counted: "+
		"each gave its key a fresh quota. Raise --memory-limit when this grows.", s.table.EvictedLive)
	m.counters("sluice_evicted_live_total", "The same by domain: those that rules name, up to 256 others that have counters, and (other) for the rest.", "domain")
	for _, d := range s.domains {
		m.sample(float64(d.EvictedLive), d.Name)
	}
	m.gauges("sluice_domain_counters", "Counters held, by domain, as in sluice_evicted_live_total.", "domain")
	for _, d := range s.domains {
		m.sample(float64(d.Entries), d.Name)
	}
	m.counter("sluice_denied_full_total", "Checks of new keys that were denied because there was no room for a counter: see --when-full and max_keys.",
		s.table.DeniedFull)
	m.gauge("sluice_limit_sets", "Sets of limits that counters refer to, of rules and of checks that bring their own; at 65,536 no new ones are taken.",
		float64(s.table.Sets))
}

// knowing has who is there, and who is counted.
func (m *scrape) knowing(s *snapshot) {
	c := &s.cluster
	m.gauge("sluice_members", "Members in this node's view, itself included.", float64(s.gossip.Members))
	m.gauge("sluice_members_lost", "Members that vanished without leaving and are still tried.", float64(s.gossip.Lost))
	m.counter("sluice_members_rejected_total", "Gossip from nodes with another placement or format.", s.gossip.Rejected)
	m.counter("sluice_gossip_malformed_total", "Messages on the gossip port that are no gossip, or are encrypted with none of this node's keys.",
		s.gossip.Malformed)
	m.counter("sluice_gossip_tcp_only_probes_total", "Probes of other nodes that were answered over TCP and not over UDP.", s.gossip.TCPOnly)
	m.gauges("sluice_gossip_keys", "Keys that gossip is encrypted with; the label names the one for what is sent.", "primary")
	if s.gossip.Keys > 0 {
		m.sample(float64(s.gossip.Keys), s.gossip.Primary)
	}
	m.gauge("sluice_members_unproven", "Processes that were heard of in encrypted gossip and have not answered this node yet.",
		float64(s.gossip.Unproven))
	m.counter("sluice_gossip_streams_rejected_total", "Streams to the gossip port that were closed: too many, too long, or announcing more than gossip has.",
		s.gossip.RejectedStreams)
	m.counter("sluice_joins_total", "Attempts to reach join targets and lost members.", s.gossip.Joins)
	m.counter("sluice_joins_failed_total", "Those that nobody answered.", s.gossip.JoinsFailed)
	m.gauge("sluice_gossip_health", "memberlist's score of this node: 0 is well, higher misses answers.", float64(s.gossip.Health))
	m.counter("sluice_messages_total", "Messages about members, partitions and counters that were sent to other nodes.", s.pool.Posted)
	m.counter("sluice_messages_dropped_total", "Those that were not, for a full queue or want of a connection, and those of others that met "+
		"a full queue here. What matters is sent again.", s.pool.Dropped+c.Dropped)

	m.gauge("sluice_right", "1 while this node may decide: a majority has acknowledged it just now.", flag(c.Right))
	m.gauge("sluice_set_members", "Members that majorities are counted in.", float64(len(c.Set.Members)))
	m.gauge("sluice_set_version", "Version of the set of these members.", float64(c.Set.Version))
	m.gauge("sluice_peers_unheard", "Members that gossip shows and that are not heard over the peer port.", float64(c.Unreachable))
	m.counter("sluice_voter_set_write_errors_total", "Writes of the voter set to --data-dir that failed; until one succeeds the node has no quorum.",
		c.StoresFailed)
	m.counter("sluice_sets_dissolved_total", "Sets that this node gave up for one of another cluster that it met.", c.Dissolved)
}

// moving has partitions, and how they move.
func (m *scrape) moving(s *snapshot) {
	c := &s.cluster
	p := &s.cluster.Partitions
	m.gauge("sluice_partitions", "Partitions that this node holds.", float64(p.Holding))
	m.gauge("sluice_partitions_closing", "Partitions that are on their way to another owner.", float64(p.Closing))
	m.gauge("sluice_partitions_claiming", "Partitions without an owner that this node is claiming.", float64(p.Claiming))
	m.gauge("sluice_partitions_unprotected", "Partitions held here that no other node, of those that are heard, has a complete copy of.",
		float64(p.Unprotected))
	m.gauge("sluice_partitions_below_replicas", "Partitions held here of which fewer nodes that are heard have a complete replica than --replicas says, or than there are other nodes that serve.",
		float64(p.Below))
	m.gauge("sluice_copies", "Copies here of partitions that other nodes hold.", float64(p.Copies))
	m.gauge("sluice_divergent", "States of partitions lost to another owner that it has not taken in yet.", float64(p.Divergent))
	m.counters("sluice_handoffs_total", "Partitions given to another node, and taken from one.", "direction")
	m.by("given", p.HandedOver, "taken", p.Received)
	m.counter("sluice_handoffs_rejected_total", "Hand-offs that the other node rejected; the partition was taken back.", p.TakenBack)
	m.counter("sluice_claims_total", "Partitions claimed because they had no living owner.", p.Claims)
	m.counter("sluice_claims_fresh_total", "Those of which nobody had any state, as at the first start: their counters began afresh.", p.Fresh)
	m.counter("sluice_claims_lost_state_total", "Partitions claimed without the state that there was, as far as known: their counters are lost until it comes back.",
		p.Losses)
	m.gauge("sluice_partitions_lost_state", "Partitions held here whose counters are lost: rules with on_lost_state: deny deny what may have been spent.",
		float64(p.Lost))
	m.counter("sluice_lost_state_denied_total", "Checks of keys held here that were denied because their counters are lost.", c.DeniedLost)
	m.counter("sluice_stepped_down_total", "Partitions that this node lost to a later owner, after a cut or a pause.", p.SteppedDown)
	m.counter("sluice_merged_total", "States of such partitions that their owners have taken in.", p.Merged)
	m.counter("sluice_freezes_total", "Times that a partition waited for its next owner to open it.", p.Freezes)
	m.seconds("sluice_freeze_seconds_total", "Time that partitions waited so.", float64(p.FrozenNanos)/1e9)
	m.gauge("sluice_freeze_seconds_max", "The longest of these times since the start.", float64(p.FrozenMax)/1e9)
	m.counter("sluice_initial_syncs_total", "Copies of partitions that were begun at other nodes.", p.InitialSyncs)
	m.counter("sluice_parts_rejected_total", "Parts of them that the other node rejected.", p.Rejected)
	m.counter("sluice_initial_syncs_damaged_total", "Copies of other nodes' partitions that could not be read or did not add up.", p.Damaged)
	m.counter("sluice_counters_too_large_total", "Times that a counter was left out of copies and hand-offs because no message takes it: it has no replica.",
		p.TooLarge)
	m.counter("sluice_copied_counters_total", "Counters sent to other nodes in copies and hand-offs.", p.Counters)
	m.counter("sluice_copied_bytes_total", "Bytes of these counters.", p.Bytes)
}

// keeping has snapshots, traces, clocks and the ring.
func (m *scrape) keeping(s *snapshot) {
	c := &s.cluster
	m.gauge("sluice_snapshot_timestamp_seconds", "When the last snapshot in --data-dir was begun, in Unix time; 0 if there is none since the start.",
		unix(s.keeper.at))
	m.gauge("sluice_snapshot_duration_seconds", "How long that took.", float64(int64(s.keeper.took))/1e9)
	m.gauge("sluice_snapshot_bytes", "Its size.", float64(s.keeper.totals.Bytes))
	m.gauge("sluice_snapshot_counters", "Counters in it.", float64(s.keeper.totals.Counters))
	m.counter("sluice_snapshots_total", "Snapshots written.", s.keeper.written)
	m.counter("sluice_snapshots_failed_total", "Snapshots that could not be written; the one before stays.", s.keeper.failed)
	m.counter("sluice_snapshots_rejected_total", "Snapshots found at the start that must not be used and were set aside.", s.keeper.rejected)
	m.gauge("sluice_snapshot_restored_counters", "Counters read from a snapshot at the start.", float64(s.keeper.restored))

	m.counters("sluice_trace_spans_total", "Spans that were sent to the collector, could not be, or were dropped because too many were on their way.", "result")
	m.by("sent", s.spans.sent, "failed", s.spans.failed, "dropped", s.spans.dropped)
	m.gauge("sluice_trace_spans_waiting", "Spans that are on their way to the collector.", float64(s.spans.waiting))

	m.gauge("sluice_clock_skew_seconds", "How far this node's clock is ahead of the median of the voters whose clocks agree; 0 while no majority does.",
		c.Clock.Ahead.Seconds())
	m.gauge("sluice_clock_correction_seconds", "How far this node aligns new windows ahead of its clock, because that is off by more than --max-clock-skew.",
		c.Clock.Correction.Seconds())
	m.gauge("sluice_clocks_disagree", "1 while no majority of the voters has clocks that agree within --max-clock-skew.",
		flag(c.Clock.Known && !c.Clock.Agree))

	m.counter("sluice_ring_builds_total", "Ring tables built.", c.RingBuilds)
	m.counter("sluice_views_rejected_total", "Views that gave no ring.", c.ViewsRejected)
}
