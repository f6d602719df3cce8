package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestImage follows an image from its index to the file in its layer, as an engine does.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	binary, file := filepath.Join(dir, "binary"), filepath.Join(dir, "image.tar")
	if err := os.WriteFile(binary, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // over the first
		if err := image(file, binary, Target{"linux", "arm64"}, "v1.2.3+x", committed); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(read(t, file))); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		if digest, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok && digestOf(files[h.Name]) != "sha256:"+digest {
			t.Errorf("%s has another digest", h.Name)
		}
	}
	decode := func(name string, into any) {
		t.Helper()
		if err := json.Unmarshal(files[name], into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var index struct{ Manifests []descriptor }
	decode("index.json", &index)
	if len(index.Manifests) != 1 || *index.Manifests[0].Platform != (platform{"arm64", "linux"}) ||
		index.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3-x" {
		t.Fatalf("index %+v", index)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(blobPath(index.Manifests[0]), &manifest)
	var config imageConfig
	decode(blobPath(manifest.Config), &config)
	if config.platform != (platform{"arm64", "linux"}) || !config.Created.Equal(committed) || !reflect.DeepEqual(config.Config, howToRun("v1.2.3+x")) {
		t.Errorf("config %+v", config)
	}
	packed := files[blobPath(manifest.Layers[0])]
	if len(packed) != manifest.Layers[0].Size {
		t.Errorf("the layer has %d bytes, not %d", len(packed), manifest.Layers[0].Size)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if digestOf(layer) != config.RootFS.DiffIDs[0] {
		t.Error("the layer is not what the config says")
	}
	r := tar.NewReader(bytes.NewReader(layer))
	h, err := r.Next()
	if err != nil || h.Name != "sluice" || h.Mode != 0o755 || h.Uid != 0 {
		t.Fatalf("the layer has %+v, %v", h, err)
	}
	if data, err := io.ReadAll(r); err != nil || string(data) != "a program" {
		t.Errorf("the program is %q, %v", data, err)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("the layer has more than the program: %v", err)
	}
	var docker []struct {
		Config           string
		RepoTags, Layers []string
	}
	decode("manifest.json", &docker)
	if len(docker) != 1 || docker[0].Config != blobPath(manifest.Config) || docker[0].Layers[0] != blobPath(manifest.Layers[0]) ||
		docker[0].RepoTags[0] != "sluice:v1.2.3-x" {
		t.Errorf("manifest.json: %+v", docker)
	}
}

// An image runs as the Dockerfile has it.
func TestImageIsTheDockerfile(t *testing.T) {
	run := howToRun("v1")
	got := map[string]string{}
	for line := range strings.Lines(string(read(t, "../../Dockerfile"))) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[instruction] = rest
	}
	list := func(text string) (words []string) {
		if err := json.Unmarshal([]byte(text), &words); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return words
	}
	ports := map[string]struct{}{}
	for port := range strings.FieldsSeq(got["EXPOSE"]) {
		ports[port] = struct{}{}
	}
	if got["USER"] != run.User || !reflect.DeepEqual([]string{got["ENV"]}, run.Env) || !reflect.DeepEqual(ports, run.ExposedPorts) ||
		!reflect.DeepEqual(list(got["ENTRYPOINT"]), run.Entrypoint) || !reflect.DeepEqual(list(got["CMD"]), run.Cmd) {
		t.Errorf("images run as %+v, the Dockerfile says %v", run, got)
	}
}
