package manifests

import (
	"io/fs"
	"strings"
	"testing"
)

func TestImage(t *testing.T) {
	data, err := fs.ReadFile(project, "Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range JudgeImage(string(data), ports) {
		t.Error(fault)
	}
	for _, c := range []struct{ old, new, want string }{
		{"FROM scratch", "FROM alpine", `FROM ["alpine"]`},
		{"USER 65532:65532", "", "no USER"},
		{"7463/udp", "", "EXPOSE"},
		{"ENV SLUICE_BIND=0.0.0.0", "", "no ENV"},
		{"CMD ", "RUN true\nCMD ", `RUN ["true"]`},
		{"COPY ${BINARY} /sluice", "COPY ${BINARY} /sluice\nCOPY . /", "COPY"},
	} {
		faults := JudgeImage(strings.Replace(string(data), c.old, c.new, 1), ports)
		if len(faults) != 1 || !strings.Contains(faults[0], c.want) {
			t.Errorf("with %q for %q the judge says %q, want one about %s", c.new, c.old, faults, c.want)
		}
	}
}
