package httpapi

import (
	"net/http"

	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// health is the body of GET /healthz.
type health struct {
	Status string `json:"status"`
	// RulesError is why the newest rule files are not in force. The node goes on
	// with the older ones, so it is alive all the same.
	RulesError string `json:"rules_error,omitempty"`
	// RulesSkipped are files beside the rules that are not read, each with the reason.
	RulesSkipped []string `json:"rules_skipped,omitempty"`
}

// healthz says that the process lives.
func (d *door) healthz(w http.ResponseWriter, _ *http.Request) {
	h := health{Status: "alive"}
	if d.RulesError != nil {
		if err := d.RulesError(); err != nil {
			h.RulesError = err.Error()
		}
	}
	if d.RulesSkipped != nil {
		h.RulesSkipped = d.RulesSkipped()
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, h)
}

// readiness is the body of GET /readyz.
type readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons,omitempty"`
}

// readyz says whether this node is to be given traffic.
func (d *door) readyz(w http.ResponseWriter, _ *http.Request) {
	ok, reasons := d.Ready()
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	httpanswer.Write(w, status, httpanswer.TypeJSON, readiness{ok, reasons})
}
