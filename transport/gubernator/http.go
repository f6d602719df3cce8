package gubernator

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/transport"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
	"github.com/sluicecluster/sluice/transport/internal/httpbody"
)

// requests is what the parts of a body take: protojson reads all requests, also those above
// maxRequests.
var requests = httpbody.Shape{
	Objects: []httpbody.Object{{
		Bytes: int64(reflect.TypeFor[gubernatorv1.RateLimitReq]().Size()+reflect.TypeFor[request]().Size()) + limiter.CheckBytes,
	}},
	Text: 64, // those of fields that are not known
}

// Mount puts the calls on their paths of mux.
func (a *API) Mount(mux *http.ServeMux) {
	mount(mux, http.MethodPost, "/v1/GetRateLimits", func(w http.ResponseWriter, r *http.Request) {
		pass, rejected := a.config.Guard.Request(r, limiter.GubernatorAPI)
		if rejected != nil {
			write(w, http.StatusOK, nil, rejection(rejected))
			return
		}
		var req gubernatorv1.GetRateLimitsReq
		if err := a.read(w, r, &req); err != nil {
			reject(w, err)
			return
		}
		ctx := r.Context()
		if text := r.Header.Get(transport.HeaderTraceparent); a.config.Tracing && text != "" {
			ctx = transport.WithTraceparent(ctx, text)
		}
		res, err := a.getRateLimits(ctx, &pass, nil, &req)
		write(w, http.StatusOK, res, err)
	})
	mount(mux, http.MethodGet, "/v1/HealthCheck", func(w http.ResponseWriter, r *http.Request) {
		id := access.OfRequest(r)
		res, err := a.healthCheck(r.Context(), a.config.Guard.Knows(&id))
		code := http.StatusOK
		if res.GetStatus() == unhealthy {
			// Load balancers read no more than the status.
			code = http.StatusServiceUnavailable
		}
		write(w, code, res, err)
	})
	mount(mux, http.MethodGet, "/v1/LiveCheck", func(w http.ResponseWriter, r *http.Request) {
		res, err := a.LiveCheck(r.Context(), &gubernatorv1.LiveCheckReq{})
		write(w, http.StatusOK, res, err)
	})
}

// mount serves one method of a path and rejects the others.
func mount(mux *http.ServeMux, method, path string, h http.HandlerFunc) {
	allow := method
	if method == http.MethodGet {
		allow += ", " + http.MethodHead // ServeMux serves both
	}
	mux.HandleFunc(method+" "+path, h)
	mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", allow)
		writeStatus(w, http.StatusMethodNotAllowed, status.New(codes.Unimplemented, "want "+allow))
	})
}

// writer writes the names of the .proto file, and empty fields too, as gubernator does.
var writer = protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}

// read reads the body into req. No body is an empty message.
func (a *API) read(w http.ResponseWriter, r *http.Request, req *gubernatorv1.GetRateLimitsReq) error {
	return httpbody.Read(w, r, httpbody.Most, a.config.Memory, requests, func(body []byte) error {
		if len(body) == 0 {
			return nil
		}
		return decode(body, req)
	})
}

// decode reads JSON into req. It ignores unknown fields, as gubernator does: they may be of a later version.
func decode(body []byte, req *gubernatorv1.GetRateLimitsReq) error {
	if protojson.Unmarshal(body, req) == nil {
		return nil
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, req); err != nil {
		return err
	}
	return unknownName(body)
}

// enums are the fields of a request that have names for values.
var enums = map[string]map[string]int32{"algorithm": gubernatorv1.Algorithm_value, "behavior": gubernatorv1.Behavior_value}

// unknownName returns an error if a request of body, which decode could read, has an unknown name for an algorithm or a
// behavior. protojson ignores those too.
func unknownName(body []byte) error {
	var call struct {
		Requests []map[string]json.RawMessage `json:"requests"`
	}
	if err := json.Unmarshal(body, &call); err != nil {
		return err
	}
	for i, q := range call.Requests {
		for _, field := range slices.Sorted(maps.Keys(enums)) {
			values := enums[field]
			var name string
			if json.Unmarshal(q[field], &name) != nil {
				continue // it is a number, or not there
			}
			if _, known := values[name]; !known {
				return fmt.Errorf("requests[%d].%s: %q is unknown; want %s", i, field, name,
					strings.Join(slices.Sorted(maps.Keys(values)), ", "))
			}
		}
	}
	return nil
}

// reject answers a body that could not be read.
func reject(w http.ResponseWriter, err error) {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		writeStatus(w, http.StatusRequestEntityTooLarge, status.New(codes.ResourceExhausted,
			"the body is larger than "+strconv.FormatInt(large.Limit, 10)+" bytes; split the call"))
		return
	}
	if code, text, ok := httpbody.Status(err); ok {
		writeStatus(w, code, status.New(codes.ResourceExhausted, text))
		return
	}
	// protojson varies the space after its prefix.
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	writeStatus(w, http.StatusBadRequest, status.New(codes.InvalidArgument, "body: "+strings.TrimPrefix(text, "proto: ")))
}

// write answers with m and code, or with err where there is one.
func write(w http.ResponseWriter, code int, m proto.Message, err error) {
	if err != nil {
		st := status.Convert(err)
		if st.Code() == codes.Unauthenticated {
			w.Header().Set("WWW-Authenticate", httpanswer.Challenge)
		}
		writeStatus(w, cmp.Or(httpStatus[st.Code()], http.StatusInternalServerError), st)
		return
	}
	body, err := writer.Marshal(m)
	if err != nil {
		writeStatus(w, http.StatusInternalServerError, status.New(codes.Internal, err.Error()))
		return
	}
	writeBody(w, code, body)
}

// httpStatus has the HTTP statuses of the codes that the calls return; of others it is 500.
var httpStatus = map[codes.Code]int{
	codes.OutOfRange: http.StatusBadRequest, codes.InvalidArgument: http.StatusBadRequest, codes.Unavailable: http.StatusServiceUnavailable,
	codes.Unauthenticated: http.StatusUnauthorized, codes.PermissionDenied: http.StatusForbidden,
}

// failure is the body of an error, as of gubernator's HTTP API.
type failure struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
	Details []struct{} `json:"details"`
}

func writeStatus(w http.ResponseWriter, code int, st *status.Status) {
	body, err := json.Marshal(failure{st.Code(), st.Message(), []struct{}{}})
	if err != nil {
		panic("gubernator: a number and a text cannot be written: " + err.Error())
	}
	writeBody(w, code, body)
}

func writeBody(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that has gone needs no answer
}
