package rules

// warnOfProxies warns of what makes all clients one.
func (p *parser) warnOfProxies(a *Authorize) {
	if len(a.Trusted) > 0 {
		return
	}
	for _, d := range a.Descriptors {
		for i := range d {
			if d[i].From == FromClientAddress {
				p.warn(a.Line, "authorize.trusted_proxies", "without trusted_proxies the client's address is that of the proxy that asks, so all clients are one")
				return
			}
		}
	}
}

// warnOfUnruled warns of descriptors that no rule of their domain is for: nothing would ever
// limit them. It is asked when all files have been read.
func (s *Set) warnOfUnruled() {
	for _, domain := range s.Domains() {
		a := s.authorize[domain]
		if a == nil {
			continue
		}
		for i, d := range a.Descriptors {
			if !s.domains[domain].leads(d) {
				s.warnings = append(s.warnings, Warning{File: a.File, Line: a.Line, Path: indexed("authorize.descriptors", i),
					Text: "no rule of the domain has these keys, so nothing limits what is checked here"})
			}
		}
	}
}

// leads reports whether a descriptor with the keys of d can come to a rule. What values
// there can be is not looked at.
func (n *node) leads(d []AuthorizeEntry) bool {
	if len(d) == 0 {
		return n.rule != nil
	}
	if to := n.byKey[d[0].Key]; to != nil && to.leads(d[1:]) {
		return true
	}
	for e, to := range n.exact {
		if e.Key == d[0].Key && to.leads(d[1:]) {
			return true
		}
	}
	return false
}
