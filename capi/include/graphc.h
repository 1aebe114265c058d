// graphc's C interface. Made of the Rust sources by scripts/header.sh: change those.
//
// Each function that can fail returns a status: null where all went well, else a failure with a code and a text, which
// graphc_status_free frees. Whatever is handed out through a T ** is owned by the caller and freed by the function of
// its type; it is set to null where the function fails. Pointers that are handed out otherwise belong to the handle
// that they come from.
//
// Functions of different handles may be called by different threads. What one handle allows is said at its type.

#ifndef GRAPHC_H
#define GRAPHC_H

#include <stddef.h>
#include <stdint.h>

// DLPack's structures, as its own dlpack.h has them.
typedef struct DLManagedTensor DLManagedTensor;
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;

// The version of this interface. It grows with each change: code that was compiled for a version works with each
// later one whose number has the same hundreds.
#define GRAPHC_API_VERSION 100

// A model that is yet to be opened: a file, or the bytes of one. It never changes: several threads may open it.
typedef struct graphc_model graphc_model;

// Options. One thread at a time may set them; once set, several may read them.
typedef struct graphc_options graphc_options;

// The outputs of a run. They never change: several threads may read them.
typedef struct graphc_outputs graphc_outputs;

// A run under way. Several threads may ask whether it is done; one waits for it.
typedef struct graphc_run graphc_run;

// A compiled model on a device. Several threads may run it at once. One with state runs one after the other.
typedef struct graphc_session graphc_session;

// A failure. Owned by whoever was given it, and freed with graphc_status_free. It never changes: several threads may
// read it.
typedef struct graphc_status graphc_status;

// A tensor, dense and row by row. Its values never change, so several threads may read it and give it to runs.
typedef struct graphc_tensor graphc_tensor;

// Where a run leaves its outputs: one of the GRAPHC_PLACE_ constants.
typedef int32_t graphc_place;

// An element type: one of the GRAPHC_DTYPE_ constants.
typedef int32_t graphc_dtype;

// An input, an output or a state of a session. Pointers live as long as the session.
typedef struct graphc_port {
  const char *name;
  graphc_dtype dtype;
  // How many sizes the shape has; 0 for a scalar.
  size_t rank;
  // The sizes; -1 for those that are open.
  const int64_t *sizes;
  // The sizes as texts: a number, the name of an open size, or arithmetic over names as "2*seq + 1".
  const char *const *labels;
} graphc_port;

// What kind of failure a status is: one of the GRAPHC_CODE_ constants.
typedef int32_t graphc_code;

// Lets borrowed memory go.
typedef void (*graphc_release)(void *context);

// What a tensor is. Pointers live as long as the tensor.
typedef struct graphc_tensor_info {
  graphc_dtype dtype;
  // How many sizes the shape has; 0 for a scalar.
  size_t rank;
  const int64_t *shape;
  // The bytes of all elements; 4-bit types take half a byte each, rounded up.
  size_t bytes;
  // "cpu", "hip:0", "cuda:1".
  const char *device;
} graphc_tensor_info;

// 32-bit float.
#define GRAPHC_DTYPE_F32 0

// IEEE 16-bit float.
#define GRAPHC_DTYPE_F16 1

// bfloat16.
#define GRAPHC_DTYPE_BF16 2

// 64-bit float.
#define GRAPHC_DTYPE_F64 3

// 8-bit float e4m3 of OCP, without infinities.
#define GRAPHC_DTYPE_F8E4M3FN 4

// 8-bit float e4m3 without negative zero.
#define GRAPHC_DTYPE_F8E4M3FNUZ 5

// 8-bit float e5m2 of OCP.
#define GRAPHC_DTYPE_F8E5M2 6

// 8-bit float e5m2 without negative zero.
#define GRAPHC_DTYPE_F8E5M2FNUZ 7

// 64-bit signed integer.
#define GRAPHC_DTYPE_I64 8

// 32-bit signed integer.
#define GRAPHC_DTYPE_I32 9

// 16-bit signed integer.
#define GRAPHC_DTYPE_I16 10

// 8-bit signed integer.
#define GRAPHC_DTYPE_I8 11

// 8-bit unsigned integer.
#define GRAPHC_DTYPE_U8 12

// 4-bit signed integer, two in a byte, the first in the low half.
#define GRAPHC_DTYPE_I4 13

// 4-bit unsigned integer, two in a byte, the first in the low half.
#define GRAPHC_DTYPE_U4 14

// A byte that is 0 or 1.
#define GRAPHC_DTYPE_BOOL 15

// In memory of the host.
#define GRAPHC_PLACE_HOST 0

// In memory of the session's device, for other runs there.
#define GRAPHC_PLACE_DEVICE 1

// No failure: the code of a null status.
#define GRAPHC_CODE_OK 0

// An argument is null, no UTF-8, out of range, or of another kind than the function takes.
#define GRAPHC_CODE_ARGUMENT 1

// An option is unknown, or its value is none that it takes.
#define GRAPHC_CODE_OPTION 2

// A file cannot be read or written.
#define GRAPHC_CODE_FILE 3

// A model or an artifact is damaged, or asks for what graphc does not have.
#define GRAPHC_CODE_MODEL 4

// Inputs do not fit the model: a name, an element type, a shape, or an index in the data.
#define GRAPHC_CODE_INPUT 5

// A device, a library, a compiler or the code for a target is not there.
#define GRAPHC_CODE_NOT_AVAILABLE 6

// There is too little memory.
#define GRAPHC_CODE_MEMORY 7

// A device was waited for longer than the option "timeout" allows.
#define GRAPHC_CODE_TIMEOUT 8

// A device failed, or went away.
#define GRAPHC_CODE_DEVICE 9

// What is asked for is not supported.
#define GRAPHC_CODE_UNSUPPORTED 10

// A bug of graphc, a panic among them.
#define GRAPHC_CODE_INTERNAL 11

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the version of the interface that the library has: GRAPHC_API_VERSION when it was built.
uint32_t graphc_api_version(void);

// Returns graphc's version, as "0.1.0". The text lives as long as the process.
const char *graphc_version(void);

// Names a model's file: ONNX, a .gir text, or an artifact (.graphc). It is read when a session is opened, and then
// stays mapped: it should not change while the session lives.
struct graphc_status *graphc_model_from_file(const char *path, struct graphc_model **out);

// Takes a model from memory: the bytes of a file of any kind, which are copied once; sessions share the copy. ONNX's
// external data are looked for in the option "folder".
struct graphc_status *graphc_model_from_bytes(const void *bytes, size_t size, struct graphc_model **out);

// Frees a model; sessions that were opened from it stay. Null is nothing.
void graphc_model_free(struct graphc_model *model);

// Compiles a model for targets, separated by commas ("cpu", "gfx90a,gfx942"), and writes an artifact that
// graphc_model_from_file opens. No GPU is needed; for GPUs the compiler is hiprtc or NVRTC, in this process, or in
// processes of the option "worker". `options` may be null.
struct graphc_status *graphc_model_compile(const struct graphc_model *model,
                                           const char *targets,
                                           const struct graphc_options *options,
                                           const char *path);

// Says as JSON what `graphc explain` does: which rules fired, what is fused for a target, and why the rest is not.
// graphc_text_free frees the text. `options` may be null.
struct graphc_status *graphc_model_explain(const struct graphc_model *model,
                                           const char *targets,
                                           const struct graphc_options *options,
                                           char **out);

// Makes options that are all defaults: on the CPU, optimised, with a thread a core.
struct graphc_status *graphc_options_new(struct graphc_options **out);

// Sets an option by its key: "device" to "cpu", "threads" to "4", "size" to "batch=1..64". "size", "shape" and
// "state" may be set several times, once for each name. A key that is none is a failure whose text names the nearest
// one.
struct graphc_status *graphc_options_set(struct graphc_options *options, const char *key, const char *value);

// Lists all keys, a line each: the key, a tab, and what it sets. graphc_text_free frees the text.
struct graphc_status *graphc_options_keys(char **out);

// Frees options. Sessions that were opened with them stay. Null is nothing.
void graphc_options_free(struct graphc_options *options);

// Runs a session and waits. `names` may be null: tensors are then in the order of the session's inputs. Tensors may
// be of the host or of the session's device; outputs come to the host. Nothing of the inputs is kept.
struct graphc_status *graphc_session_run(const struct graphc_session *session,
                                         const char *const *names,
                                         const struct graphc_tensor *const *tensors,
                                         size_t count,
                                         struct graphc_outputs **out);

// Begins a run and does not wait for it; as graphc_session_run otherwise. `place` says where outputs are left. The
// tensors may be freed at once; memory that they borrow stays borrowed until the run is done.
struct graphc_status *graphc_session_submit(const struct graphc_session *session,
                                            const char *const *names,
                                            const struct graphc_tensor *const *tensors,
                                            size_t count,
                                            graphc_place place,
                                            struct graphc_run **out);

// Returns 1 where a run is done, well or not, or its outputs were taken, and 0 where it is under way.
int32_t graphc_run_is_done(const struct graphc_run *run);

// Waits for a run and takes its outputs, once.
struct graphc_status *graphc_run_wait(const struct graphc_run *run, struct graphc_outputs **out);

// Frees a run. One that was not waited for comes to its end, and its outputs are lost. Null is nothing.
void graphc_run_free(struct graphc_run *run);

// Returns how many outputs there are. 0 for null.
size_t graphc_outputs_count(const struct graphc_outputs *outputs);

// Returns the name of an output, by its number from 0 in the order of the session's; it lives as long as the
// outputs. Null for a number that is none.
const char *graphc_outputs_name(const struct graphc_outputs *outputs, size_t index);

// Gives an output by its number from 0, as a tensor of its own that shares the values.
struct graphc_status *graphc_outputs_get(const struct graphc_outputs *outputs,
                                         size_t index,
                                         struct graphc_tensor **out);

// Gives an output by its name, as a tensor of its own that shares the values.
struct graphc_status *graphc_outputs_find(const struct graphc_outputs *outputs,
                                          const char *name,
                                          struct graphc_tensor **out);

// Frees outputs; tensors that were taken from them stay. Null is nothing.
void graphc_outputs_free(struct graphc_outputs *outputs);

// Opens a model: reads it, compiles it for the options' device, and loads it there. `options` may be null. Sizes
// that the model leaves open stay open: the session runs all of them.
struct graphc_status *graphc_session_new(const struct graphc_model *model,
                                         const struct graphc_options *options,
                                         struct graphc_session **out);

// Opens a model for inputs like these: as graphc_session_new where that works for them, or else for their sizes and
// for the sizes and branches that their data decide, which each run checks. `reason`, if it is not null, is then set
// to a text that says why, and to null otherwise; graphc_text_free frees it.
struct graphc_status *graphc_session_new_for(const struct graphc_model *model,
                                             const struct graphc_options *options,
                                             const char *const *names,
                                             const struct graphc_tensor *const *tensors,
                                             size_t count,
                                             char **reason,
                                             struct graphc_session **out);

// Makes another session of the same program, whose state begins as this one's is now. Memory is shared until one of
// them writes.
struct graphc_status *graphc_session_fork(const struct graphc_session *session, struct graphc_session **out);

// Frees a session; runs under way come to their end, and tensors stay. Null is nothing.
void graphc_session_free(struct graphc_session *session);

// Returns the name of the device that a session is on: "cpu", "hip:0". It lives as long as the session; null for a
// null session.
const char *graphc_session_device(const struct graphc_session *session);

// Returns how many inputs a run is given; state is not among them. 0 for a null session.
size_t graphc_session_input_count(const struct graphc_session *session);

// Returns how many outputs a run gives. 0 for a null session.
size_t graphc_session_output_count(const struct graphc_session *session);

// Returns how many inputs are kept from run to run. 0 for a null session.
size_t graphc_session_state_count(const struct graphc_session *session);

// Describes an input, by its number from 0.
struct graphc_status *graphc_session_input(const struct graphc_session *session, size_t index, struct graphc_port *out);

// Describes an output, by its number from 0.
struct graphc_status *graphc_session_output(const struct graphc_session *session,
                                            size_t index,
                                            struct graphc_port *out);

// Describes a state, by its number from 0; its name is the input's.
struct graphc_status *graphc_session_state(const struct graphc_session *session, size_t index, struct graphc_port *out);

// Copies a tensor to the session's device, to be given to several runs.
struct graphc_status *graphc_session_upload(const struct graphc_session *session,
                                            const struct graphc_tensor *tensor,
                                            struct graphc_tensor **out);

// Says as JSON what `graphc inspect` does: sizes, inputs, outputs, weights, kernels, memory. graphc_text_free frees
// the text.
struct graphc_status *graphc_session_inspect(const struct graphc_session *session, char **out);

// Runs a session some times on inputs and says as JSON where the time goes, step by step. Names may be null, as for
// graphc_session_run. graphc_text_free frees the text.
struct graphc_status *graphc_session_profile(const struct graphc_session *session,
                                             const char *const *names,
                                             const struct graphc_tensor *const *tensors,
                                             size_t count,
                                             size_t runs,
                                             char **out);

// Copies a state to the host, by the name of its input.
struct graphc_status *graphc_session_state_get(const struct graphc_session *session,
                                               const char *name,
                                               struct graphc_tensor **out);

// Sets a state, by the name of its input. The tensor may be of the host or of the session's device.
struct graphc_status *graphc_session_state_set(const struct graphc_session *session,
                                               const char *name,
                                               const struct graphc_tensor *tensor);

// Sets all state to zeros.
struct graphc_status *graphc_session_state_reset(const struct graphc_session *session);

// Returns what kind of failure a status is; GRAPHC_CODE_OK for null.
graphc_code graphc_status_code(const struct graphc_status *status);

// Returns the text of a failure, which lives as long as the status; an empty text for null.
const char *graphc_status_message(const struct graphc_status *status);

// Frees a status. Null is nothing.
void graphc_status_free(struct graphc_status *status);

// Makes a tensor of memory that is copied. Null data are zeros.
struct graphc_status *graphc_tensor_new(graphc_dtype dtype,
                                        const int64_t *shape,
                                        size_t rank,
                                        const void *data,
                                        size_t bytes,
                                        struct graphc_tensor **out);

// Makes a tensor of memory that is not copied. It must stay as it is until `release` is called with `context`: once,
// by any thread, when the tensor and all runs and tensors that use it are gone. Memory whose address is no multiple
// of the element's size is copied, and released at once. After a failure `release` is not called. A null `release`
// is for memory that outlives everything.
struct graphc_status *graphc_tensor_borrow(graphc_dtype dtype,
                                           const int64_t *shape,
                                           size_t rank,
                                           const void *data,
                                           size_t bytes,
                                           graphc_release release,
                                           void *context,
                                           struct graphc_tensor **out);

// Says what a tensor is.
struct graphc_status *graphc_tensor_describe(const struct graphc_tensor *tensor, struct graphc_tensor_info *out);

// Gives the address of a tensor's bytes on the host, which live as long as the tensor and must not be written. A
// tensor of a GPU has none: graphc_tensor_to_host copies it.
struct graphc_status *graphc_tensor_data(const struct graphc_tensor *tensor, const void **out);

// Copies a tensor to the host, after the run that makes it. One of the host, or of the CPU device, is shared and not
// copied.
struct graphc_status *graphc_tensor_to_host(const struct graphc_tensor *tensor, struct graphc_tensor **out);

// Makes another handle on the same values.
struct graphc_status *graphc_tensor_share(const struct graphc_tensor *tensor, struct graphc_tensor **out);

// Takes a tensor over from DLPack 1.x; `managed` is then graphc's, which calls its deleter when nothing uses it any
// more. After a failure it stays the caller's. Dense memory of the host is not copied; memory with strides is, into
// dense memory. Memory of a GPU is not copied either: `session` must then be on that GPU, and what fills the memory
// must be done. `session` may be null for the host's.
struct graphc_status *graphc_tensor_from_dlpack(DLManagedTensorVersioned *managed,
                                                const struct graphc_session *session,
                                                struct graphc_tensor **out);

// As graphc_tensor_from_dlpack, for the structure that DLPack had before version 1.
struct graphc_status *graphc_tensor_from_dlpack_unversioned(DLManagedTensor *managed,
                                                            const struct graphc_session *session,
                                                            struct graphc_tensor **out);

// Lends a tensor to DLPack 1.x, marked as read-only. Nothing is copied; the values live until the deleter is called,
// also when the tensor is freed before. A tensor on several devices cannot be lent.
struct graphc_status *graphc_tensor_to_dlpack(const struct graphc_tensor *tensor, DLManagedTensorVersioned **out);

// As graphc_tensor_to_dlpack, in the structure that DLPack had before version 1. It cannot say that the memory must
// not be written.
struct graphc_status *graphc_tensor_to_dlpack_unversioned(const struct graphc_tensor *tensor, DLManagedTensor **out);

// Frees a tensor; runs under way and outputs that share its values keep them. Null is nothing.
void graphc_tensor_free(struct graphc_tensor *tensor);

// Frees a text that a function of this interface handed out by a char **. Null is nothing.
void graphc_text_free(char *text);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GRAPHC_H */
