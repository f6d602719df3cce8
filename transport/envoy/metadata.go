package envoy

import (
	"fmt"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-project/sluice/limiter"
)

// metadata returns what the next filters and the access log may want to know: domain,
// descriptors and hitsAddend of the request, and under metadata that of the rules which have
// something left, laid over each other in the order of the descriptors.
func metadata(b *limiter.Batch, req *ratelimitv3.RateLimitRequest) *structpb.Struct {
	descriptors := make([]*structpb.Value, len(req.GetDescriptors()))
	for i, d := range req.GetDescriptors() {
		descriptors[i] = structpb.NewStructValue(entries(d))
	}
	fields := map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(req.GetDomain()),
		"descriptors": list(descriptors),
	}
	if hits := req.GetHitsAddend(); hits != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(hits))
	}
	merged := map[string]any{}
	for i := range b.Results {
		if r := &b.Results[i]; limited(r) && !over(r) && r.Rule != nil {
			merge(merged, r.Rule.Metadata)
		}
	}
	if len(merged) > 0 {
		// Rules are read into nothing that a Struct cannot hold.
		if s, err := structpb.NewStruct(merged); err == nil {
			fields["metadata"] = structpb.NewStructValue(s)
		}
	}
	return &structpb.Struct{Fields: fields}
}

// entries returns a descriptor with each entry as one text.
func entries(d *commonv3.RateLimitDescriptor) *structpb.Struct {
	texts := make([]*structpb.Value, len(d.GetEntries()))
	for i, e := range d.GetEntries() {
		texts[i] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
	}
	fields := map[string]*structpb.Value{"entries": list(texts)}
	if o := d.GetLimit(); o != nil {
		fields["limit"] = structpb.NewStringValue(limitText(o))
	}
	if h := d.GetHitsAddend(); h != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(h.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

// limitText spells o as envoyproxy/ratelimit does, in the text form of its message.
func limitText(o *override) string {
	text := fmt.Sprintf("requests_per_unit:%d unit:%v", o.GetRequestsPerUnit(), o.GetUnit())
	if m := o.GetUnitMultiplier(); m != nil {
		text += fmt.Sprintf(" unit_multiplier:{value:%d}", m.GetValue())
	}
	return text
}

func list(values []*structpb.Value) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: values})
}

// merge lays from under to: what to has stays, and mappings that both have are merged. It
// does not change from, nor anything in it.
func merge(to, from map[string]any) {
	for key, value := range from {
		inner, isMap := value.(map[string]any)
		have, taken := to[key]
		switch {
		case !taken && isMap:
			own := map[string]any{}
			merge(own, inner)
			to[key] = own
		case !taken:
			to[key] = value
		case isMap:
			if own, ok := have.(map[string]any); ok {
				merge(own, inner)
			}
		}
	}
}
