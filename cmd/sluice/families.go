package main

// families are the metrics of a node, in the order of the questions that they
// answer: is it serving, what does it decide, who decides, what waits, what is
// held, who is there. Labels are bounded: by results, error codes and rules.
var families = []family{
	gauge("sluice_ready", "1 when this node takes traffic.",
		func(s *snapshot) float64 { return flag(s.ready) }),
	gauge("sluice_rules_generation", "Sets of rules that came into force since the start; 0 without --rules.",
		func(s *snapshot) float64 { return float64(s.rules.Generation) }),
	gauge("sluice_rules_stale", "1 while the rule files have a fault and older rules are in force.",
		func(s *snapshot) float64 { return flag(s.rules.LastError != nil) }),
	counter("sluice_rules_failures_total", "Different faults found in rule files.",
		func(s *snapshot) uint64 { return s.rules.Failures }),

	counter("sluice_calls_total", "Calls of Check and Reset through any door.",
		func(s *snapshot) uint64 { return s.service.Calls }),
	counters("sluice_checks_total", "Checks by result.", []string{"result"}, func(s *snapshot) []sample {
		return by("allowed", s.service.Allowed, "denied", s.service.Denied, "shadowed", s.service.Shadowed)
	}),
	counters("sluice_check_errors_total", "Checks without a decision, by reason.", []string{"code"}, errorSamples),
	counters("sluice_rule_checks_total", "Checks by rule and result.", []string{"domain", "rule", "result"}, ruleSamples),

	counters("sluice_answers_total", "Checks of this node's doors by who answered: the node itself, another that "+
		"holds the key, or a rule's on_failure because no holder was reached in time.", []string{"source"},
		func(s *snapshot) []sample {
			c := s.cluster
			return by("held", c.Held, "forwarded", c.Forwarded, "share", c.Share, "closed", c.Closed, "open", c.Open,
				"unanswered", c.Unanswered, "overloaded", c.Overloaded)
		}),
	counter("sluice_forwards_total", "Checks sent to other nodes, retries included.",
		func(s *snapshot) uint64 { return s.cluster.Forwards }),
	counter("sluice_forward_retries_total", "Attempts to find a holder that began after a wait.",
		func(s *snapshot) uint64 { return s.cluster.Retries }),
	counter("sluice_forward_redirects_total", "Answers of other nodes that they do not hold the key.",
		func(s *snapshot) uint64 { return s.cluster.Redirected }),
	counter("sluice_forward_ambiguous_total", "Checks sent without an answer; a retry of theirs may be charged twice.",
		func(s *snapshot) uint64 { return s.cluster.Ambiguous }),
	counter("sluice_served_total", "Checks of other nodes decided here.",
		func(s *snapshot) uint64 { return s.cluster.Served }),
	counter("sluice_served_not_holder_total", "Checks of other nodes for keys that are not held here.",
		func(s *snapshot) uint64 { return s.cluster.NotHolder }),
	counter("sluice_give_backs_total", "Charges of failed all-or-nothing calls that were given back.",
		func(s *snapshot) uint64 { return s.cluster.GaveBack }),
	counter("sluice_give_backs_lost_total", "Such charges that could not be given back and stand.",
		func(s *snapshot) uint64 { return s.cluster.GiveBacksLost + s.cluster.HeldDropped }),

	gauge("sluice_peer_connections", "Peers connected to.",
		func(s *snapshot) float64 { return float64(s.pool.Peers) }),
	gauge("sluice_peer_queue_records", "Checks that wait to be sent to peers.",
		func(s *snapshot) float64 { return float64(s.pool.Waiting) }),
	counter("sluice_peer_frames_total", "Frames sent to peers.",
		func(s *snapshot) uint64 { return s.pool.Frames }),
	counter("sluice_peer_records_total", "Checks in those frames.",
		func(s *snapshot) uint64 { return s.pool.Records }),
	counter("sluice_peer_overloaded_total", "Calls refused because a peer's queue was full.",
		func(s *snapshot) uint64 { return s.pool.Overloaded }),
	counter("sluice_peer_dial_failures_total", "Attempts to connect to a peer that failed.",
		func(s *snapshot) uint64 { return s.pool.Failed }),
	counter("sluice_peer_broken_total", "Connections to peers that were lost.",
		func(s *snapshot) uint64 { return s.pool.Broken }),
	counter("sluice_peer_refused_total", "Incoming peer streams with another protocol, placement or secret.",
		func(s *snapshot) uint64 { return s.server.Refused }),
	counter("sluice_peer_malformed_total", "Incoming peer streams ended because of a frame that was not understood.",
		func(s *snapshot) uint64 { return s.server.Malformed }),

	gauge("sluice_counters", "Counters held.",
		func(s *snapshot) float64 { return float64(s.table.Entries) }),
	gauge("sluice_counter_bytes", "Approximate memory of the counters held.",
		func(s *snapshot) float64 { return float64(s.table.Bytes) }),
	counter("sluice_counters_inserted_total", "Counters made.",
		func(s *snapshot) uint64 { return s.table.Inserted }),
	counter("sluice_counters_expired_total", "Counters removed because they were wholly free again.",
		func(s *snapshot) uint64 { return s.table.Expired + s.table.EvictedExpired }),
	counter("sluice_counters_evicted_live_total", "Counters evicted although they still counted: "+
		"each gave its key a fresh quota. Raise --max-entries or --max-memory when this grows.",
		func(s *snapshot) uint64 { return s.table.EvictedLive }),

	gauge("sluice_members", "Members in this node's view, itself included.",
		func(s *snapshot) float64 { return float64(s.gossip.Members) }),
	gauge("sluice_members_lost", "Members that vanished without leaving and are still tried.",
		func(s *snapshot) float64 { return float64(s.gossip.Lost) }),
	counter("sluice_members_refused_total", "Gossip from nodes with another placement, secret or format.",
		func(s *snapshot) uint64 { return s.gossip.Refused }),
	counter("sluice_gossip_malformed_total", "Messages on the gossip port that are no gossip.",
		func(s *snapshot) uint64 { return s.gossip.Malformed }),
	counter("sluice_joins_total", "Attempts to reach join targets and lost members.",
		func(s *snapshot) uint64 { return s.gossip.Joins }),
	counter("sluice_joins_failed_total", "Those that nobody answered.",
		func(s *snapshot) uint64 { return s.gossip.JoinsFailed }),
	gauge("sluice_gossip_health", "memberlist's score of this node: 0 is well, higher misses answers.",
		func(s *snapshot) float64 { return float64(s.gossip.Health) }),
	gauge("sluice_partitions", "Partitions that this node holds.",
		func(s *snapshot) float64 { return float64(s.cluster.Partitions) }),
	counter("sluice_partitions_moved_away_total", "Partitions whose counters were dropped here because another node owns them now.",
		func(s *snapshot) uint64 { return s.cluster.MovedAway }),
	counter("sluice_ring_builds_total", "Ring tables built.",
		func(s *snapshot) uint64 { return s.cluster.RingBuilds }),
	counter("sluice_views_refused_total", "Views that gave no ring.",
		func(s *snapshot) uint64 { return s.cluster.ViewsRefused }),
}

func errorSamples(s *snapshot) []sample {
	var list []sample
	for code, n := range s.service.Errors {
		list = append(list, sample{[]string{code.String()}, float64(n)})
	}
	return list
}

func ruleSamples(s *snapshot) []sample {
	var list []sample
	for _, r := range s.service.Rules {
		for _, result := range []struct {
			name string
			n    uint64
		}{{"allowed", r.Allowed}, {"denied", r.Denied}, {"shadowed", r.Shadowed}, {"error", r.Errors}} {
			list = append(list, sample{[]string{r.Domain, r.Name, result.name}, float64(result.n)})
		}
	}
	return list
}
