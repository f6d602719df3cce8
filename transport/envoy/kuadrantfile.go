package envoy

import (
	"errors"
	"math"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
)

// Full names of the methods of Kuadrant's service.
const (
	kuadrantService = "kuadrant.service.ratelimit.v1.RateLimitService"

	CheckRateLimitMethod = "/" + kuadrantService + "/CheckRateLimit"
	ReportMethod         = "/" + kuadrantService + "/Report"
	ReserveMethod        = "/" + kuadrantService + "/Reserve"
	CommitMethod         = "/" + kuadrantService + "/Commit"
)

// kuadrantFile describes Kuadrant's service, as limitador publishes it. It is registered for reflection.
var kuadrantFile = mustRegister(`
	name: "kuadrantrls.proto"
	package: "kuadrant.service.ratelimit.v1"
	syntax: "proto3"
	dependency: "envoy/service/ratelimit/v3/rls.proto"
	dependency: "envoy/extensions/common/ratelimit/v3/ratelimit.proto"
	dependency: "google/protobuf/duration.proto"
	message_type {
		name: "ReserveRequest"
		field { name: "domain" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
		field { name: "descriptors" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor" }
		field { name: "amount" number: 3 label: LABEL_OPTIONAL type: TYPE_UINT64 }
		field { name: "ttl" number: 4 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" }
	}
	message_type {
		name: "ReserveResponse"
		field { name: "code" number: 1 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".envoy.service.ratelimit.v3.RateLimitResponse.Code" }
		field { name: "reservation_id" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
	}
	message_type {
		name: "CommitRequest"
		field { name: "domain" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
		field { name: "descriptors" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor" }
		field { name: "reservation_id" number: 3 label: LABEL_OPTIONAL type: TYPE_STRING }
		field { name: "actual_amount" number: 4 label: LABEL_OPTIONAL type: TYPE_UINT64 }
	}
	message_type { name: "CommitResponse" field { name: "reservation_released" number: 1 label: LABEL_OPTIONAL type: TYPE_BOOL } }
	service {
		name: "RateLimitService"
		method { name: "CheckRateLimit" input_type: ".envoy.service.ratelimit.v3.RateLimitRequest" output_type: ".envoy.service.ratelimit.v3.RateLimitResponse" }
		method { name: "Report" input_type: ".envoy.service.ratelimit.v3.RateLimitRequest" output_type: ".envoy.service.ratelimit.v3.RateLimitResponse" }
		method { name: "Reserve" input_type: ".kuadrant.service.ratelimit.v1.ReserveRequest" output_type: ".kuadrant.service.ratelimit.v1.ReserveResponse" }
		method { name: "Commit" input_type: ".kuadrant.service.ratelimit.v1.CommitRequest" output_type: ".kuadrant.service.ratelimit.v1.CommitResponse" }
	}
`)

// mustRegister returns the file that text describes, and registers it.
func mustRegister(text string) protoreflect.FileDescriptor {
	described := new(descriptorpb.FileDescriptorProto)
	unreadable := prototext.Unmarshal([]byte(text), described)
	file, err := protodesc.NewFile(described, protoregistry.GlobalFiles)
	if err := errors.Join(unreadable, err); err != nil {
		panic("envoy: " + err.Error()) // it was compiled in
	}
	if err := protoregistry.GlobalFiles.RegisterFile(file); err != nil {
		panic("envoy: " + err.Error())
	}
	return file
}

// message is one of those of kuadrantFile.
type message struct{ *dynamicpb.Message }

func newMessage(name protoreflect.Name) message {
	return message{dynamicpb.NewMessage(kuadrantFile.Messages().ByName(name))}
}

func (m message) field(name protoreflect.Name) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByName(name)
}

func (m message) get(name protoreflect.Name) protoreflect.Value { return m.Get(m.field(name)) }

func (m message) set(name protoreflect.Name, v any) { m.Set(m.field(name), protoreflect.ValueOf(v)) }

var kuadrantDesc = grpc.ServiceDesc{
	ServiceName: kuadrantService,
	HandlerType: (*any)(nil),
	Metadata:    kuadrantFile.Path(),
	Methods: []grpc.MethodDesc{
		method(CheckRateLimitMethod, newRequest, (*API).CheckRateLimit),
		method(ReportMethod, newRequest, (*API).Report),
		method(ReserveMethod, func() message { return newMessage("ReserveRequest") }, (*API).reserve),
		method(CommitMethod, func() message { return newMessage("CommitRequest") }, (*API).commit),
	},
}

// request returns a request of the descriptors of m, each with as many hits as a field of m says, and their number. Fields 1 and 2
// of m are those of a RateLimitRequest.
func (m message) request(amount protoreflect.Name) (*ratelimitv3.RateLimitRequest, int64, *limiter.Error) {
	units := m.get(amount).Uint()
	if units > math.MaxInt64 {
		return nil, 0, invalid(string(amount), "%d; want at most %d", units, math.MaxInt64)
	}
	req := newRequest()
	data, err := proto.Marshal(m)
	if err == nil {
		err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, req)
	}
	if err != nil {
		return nil, 0, invalid("", "the request cannot be read: %v", err)
	}
	for _, d := range req.GetDescriptors() {
		d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(units), false
	}
	return req, int64(units), nil
}

// ttl returns the field ttl, which is set.
func (m message) ttl() (time.Duration, *limiter.Error) {
	of := message{m.get("ttl").Message().Interface().(*dynamicpb.Message)}
	d := &durationpb.Duration{Seconds: of.get("seconds").Int(), Nanos: int32(of.get("nanos").Int())}
	if ttl := d.AsDuration(); d.IsValid() && ttl >= bucket.LeastLease {
		return ttl, nil
	}
	return 0, invalid("ttl", "%d s and %d ns; want at least %v, or leave it out", d.Seconds, d.Nanos, bucket.LeastLease)
}
