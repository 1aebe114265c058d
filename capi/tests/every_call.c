// Calls every function of the interface, right and wrong, and ends with 1 at the first surprise.
//
// usage: every_call DIGITS.onnx NONZERO.onnx FOLDER      a model whose sizes depend on data; a folder to write to

#include <graphc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// DLPack 1.0, as dlpack.h has it.
typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} DLTensor;
struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
};
struct DLManagedTensorVersioned {
  struct { uint32_t major, minor; } version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
};

#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) {                                                            \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);      \
      exit(1);                                                                     \
    }                                                                              \
  } while (0)

static void good_at(graphc_status *status, int line) {
  if (status == NULL) return;
  fprintf(stderr, "%s:%d: %s\n", __FILE__, line, graphc_status_message(status));
  exit(1);
}
#define GOOD(call) good_at((call), __LINE__)

// A call that must fail with a code and a text that has a part.
static void fails_at(graphc_status *status, int32_t code, const char *part, int line) {
  if (status == NULL) {
    fprintf(stderr, "%s:%d: it did not fail\n", __FILE__, line);
    exit(1);
  }
  if (graphc_status_code(status) != code || strstr(graphc_status_message(status), part) == NULL) {
    fprintf(stderr, "%s:%d: code %d, not %d, or no %s in: %s\n", __FILE__, line, graphc_status_code(status), code, part,
            graphc_status_message(status));
    exit(1);
  }
  graphc_status_free(status);
}
#define FAILS(call, code, part) fails_at((call), (code), (part), __LINE__)

static const char *DOUBLE = "graph @double stage=import {\n  x = input \"x\" : f32[n, m]\n  y = add x, x\n"
                            "  return y as \"y\"\n}\n";

static graphc_session *open_text(const char *text, graphc_options *options) {
  graphc_model *model = NULL;
  graphc_session *session = NULL;
  GOOD(graphc_model_from_bytes(text, strlen(text), &model));
  GOOD(graphc_session_new(model, options, &session));
  graphc_model_free(model);
  return session;
}

static graphc_tensor *floats(const int64_t *shape, size_t rank, const float *values, size_t count) {
  graphc_tensor *tensor = NULL;
  GOOD(graphc_tensor_new(GRAPHC_DTYPE_F32, shape, rank, values, count * sizeof(float), &tensor));
  return tensor;
}

// Runs on one input in the first place, and gives the first output.
static graphc_tensor *run_one(const graphc_session *session, const graphc_tensor *input) {
  graphc_outputs *outputs = NULL;
  graphc_tensor *output = NULL;
  GOOD(graphc_session_run(session, NULL, &input, 1, &outputs));
  GOOD(graphc_outputs_get(outputs, 0, &output));
  graphc_outputs_free(outputs);
  return output;
}

static const float *data_of(const graphc_tensor *tensor) {
  const void *data = NULL;
  GOOD(graphc_tensor_data(tensor, &data));
  return data;
}

static void versions(void) {
  EXPECT(graphc_api_version() == GRAPHC_API_VERSION);
  EXPECT(strlen(graphc_version()) > 0);
  EXPECT(graphc_status_code(NULL) == GRAPHC_CODE_OK && strcmp(graphc_status_message(NULL), "") == 0);
  graphc_status_free(NULL);
  graphc_options_free(NULL);
  graphc_model_free(NULL);
  graphc_session_free(NULL);
  graphc_tensor_free(NULL);
  graphc_run_free(NULL);
  graphc_outputs_free(NULL);
  graphc_text_free(NULL);
}

static void options(void) {
  graphc_options *options = NULL;
  char *keys = NULL;
  FAILS(graphc_options_new(NULL), GRAPHC_CODE_ARGUMENT, "out is null");
  GOOD(graphc_options_new(&options));
  GOOD(graphc_options_set(options, "threads", "1"));
  GOOD(graphc_options_set(options, "memory_limit", "64MiB"));
  FAILS(graphc_options_set(options, "thread", "1"), GRAPHC_CODE_OPTION, "did you mean \"threads\"?");
  FAILS(graphc_options_set(options, "device", "abacus"), GRAPHC_CODE_OPTION, "known: cpu, hip");
  FAILS(graphc_options_set(options, "threads", "many"), GRAPHC_CODE_OPTION, "threads=many");
  FAILS(graphc_options_set(options, NULL, "1"), GRAPHC_CODE_ARGUMENT, "key is null");
  FAILS(graphc_options_set(options, "threads", NULL), GRAPHC_CODE_ARGUMENT, "value is null");
  FAILS(graphc_options_set(options, "threads", "\xff"), GRAPHC_CODE_ARGUMENT, "no UTF-8");
  FAILS(graphc_options_set(NULL, "threads", "1"), GRAPHC_CODE_ARGUMENT, "options is null");
  GOOD(graphc_options_keys(&keys));
  EXPECT(strstr(keys, "device\twhere to run") == keys);
  graphc_text_free(keys);
  graphc_options_free(options);
}

static void models(const char *digits, const char *folder) {
  graphc_model *model = NULL;
  graphc_session *session = NULL;
  graphc_options *options = NULL;
  FAILS(graphc_model_from_file(NULL, &model), GRAPHC_CODE_ARGUMENT, "path is null");
  FAILS(graphc_model_from_bytes(NULL, 3, &model), GRAPHC_CODE_ARGUMENT, "bytes is null");
  FAILS(graphc_session_new(NULL, NULL, &session), GRAPHC_CODE_ARGUMENT, "model is null");
  EXPECT(session == NULL);
  GOOD(graphc_model_from_file("/no/such/model.onnx", &model));
  FAILS(graphc_session_new(model, NULL, &session), GRAPHC_CODE_FILE, "/no/such/model.onnx");
  graphc_model_free(model);
  GOOD(graphc_model_from_bytes("rubbish", 7, &model));
  FAILS(graphc_session_new(model, NULL, &session), GRAPHC_CODE_MODEL, "the model in memory");
  graphc_model_free(model);
  GOOD(graphc_model_from_bytes("graph @g {", 10, &model));
  FAILS(graphc_session_new(model, NULL, &session), GRAPHC_CODE_MODEL, "the model in memory");
  graphc_model_free(model);

  // An artifact, whole and damaged, from its file and from memory.
  char path[4096];
  snprintf(path, sizeof path, "%s/digits.graphc", folder);
  GOOD(graphc_model_from_file(digits, &model));
  GOOD(graphc_model_compile(model, "cpu", NULL, path));
  FAILS(graphc_model_compile(model, "gfx1", NULL, path), GRAPHC_CODE_OPTION, "gfx1");
  FAILS(graphc_model_compile(model, "", NULL, path), GRAPHC_CODE_OPTION, "no target");
  FAILS(graphc_model_compile(model, "cpu", NULL, "/no/such/folder/x"), GRAPHC_CODE_FILE, "/no/such/folder");
  char *text = NULL;
  GOOD(graphc_model_explain(model, "gfx90a", NULL, &text));
  EXPECT(strstr(text, "\"target\":\"gfx90a\"") != NULL && strstr(text, "\"rules\":[") != NULL);
  graphc_text_free(text);
  GOOD(graphc_options_new(&options));
  GOOD(graphc_options_set(options, "size", "no_such_size=3"));
  FAILS(graphc_session_new(model, options, &session), GRAPHC_CODE_OPTION, "no_such_size");
  graphc_model_free(model);
  GOOD(graphc_model_from_file(path, &model));
  FAILS(graphc_session_new(model, options, &session), GRAPHC_CODE_OPTION, "is compiled already");
  graphc_options_free(options);
  GOOD(graphc_options_new(&options));
  GOOD(graphc_options_set(options, "dtype", "f16"));
  FAILS(graphc_session_new(model, options, &session), GRAPHC_CODE_OPTION, "option dtype: ");
  graphc_options_free(options);
  FAILS(graphc_model_compile(model, "cpu", NULL, path), GRAPHC_CODE_OPTION, "is compiled already");
  FAILS(graphc_model_explain(model, "cpu", NULL, &text), GRAPHC_CODE_OPTION, "no longer holds its graph");
  GOOD(graphc_session_new(model, NULL, &session));
  EXPECT(graphc_session_input_count(session) == 1 && graphc_session_output_count(session) == 1);
  graphc_session_free(session);
  graphc_model_free(model);

  FILE *file = fopen(path, "rb");
  EXPECT(file != NULL && fseek(file, 0, SEEK_END) == 0);
  size_t size = (size_t)ftell(file);
  rewind(file);
  unsigned char *bytes = malloc(size);
  EXPECT(bytes != NULL && fread(bytes, 1, size, file) == size);
  fclose(file);
  GOOD(graphc_model_from_bytes(bytes, size, &model));
  GOOD(graphc_session_new(model, NULL, &session));
  graphc_session_free(session);
  graphc_model_free(model);
  bytes[size / 2] ^= 1;
  GOOD(graphc_model_from_bytes(bytes, size, &model));
  FAILS(graphc_session_new(model, NULL, &session), GRAPHC_CODE_MODEL, "damaged");
  graphc_model_free(model);
  GOOD(graphc_model_from_bytes(bytes, size / 3, &model));
  FAILS(graphc_session_new(model, NULL, &session), GRAPHC_CODE_MODEL, "ends at byte");
  graphc_model_free(model);
  free(bytes);

  GOOD(graphc_options_new(&options));
  GOOD(graphc_options_set(options, "hip", "/no/such/hip"));
  GOOD(graphc_options_set(options, "device", "hip:0"));
  GOOD(graphc_model_from_file(digits, &model));
  FAILS(graphc_session_new(model, options, &session), GRAPHC_CODE_NOT_AVAILABLE, "/no/such/hip");
  graphc_model_free(model);
  graphc_options_free(options);
}

static void ports(void) {
  graphc_session *session = open_text(DOUBLE, NULL);
  graphc_port port;
  GOOD(graphc_session_input(session, 0, &port));
  EXPECT(strcmp(port.name, "x") == 0 && port.dtype == GRAPHC_DTYPE_F32 && port.rank == 2);
  EXPECT(port.sizes[0] == -1 && strcmp(port.labels[0], "n") == 0 && strcmp(port.labels[1], "m") == 0);
  GOOD(graphc_session_output(session, 0, &port));
  EXPECT(strcmp(port.name, "y") == 0);
  FAILS(graphc_session_input(session, 1, &port), GRAPHC_CODE_ARGUMENT, "there is no input 1: the session has 1");
  FAILS(graphc_session_state(session, 0, &port), GRAPHC_CODE_ARGUMENT, "there is no state 0");
  FAILS(graphc_session_output(NULL, 0, &port), GRAPHC_CODE_ARGUMENT, "session is null");
  FAILS(graphc_session_output(session, 0, NULL), GRAPHC_CODE_ARGUMENT, "out is null");
  EXPECT(strcmp(graphc_session_device(session), "cpu") == 0 && graphc_session_device(NULL) == NULL);
  char *text = NULL;
  GOOD(graphc_session_inspect(session, &text));
  EXPECT(strstr(text, "\"kernels\"") != NULL);
  graphc_text_free(text);
  graphc_session_free(session);
}

static void runs(void) {
  graphc_session *session = open_text(DOUBLE, NULL);
  graphc_outputs *outputs = NULL;
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const int64_t shapes[3][2] = {{2, 3}, {6, 1}, {1, 2}};
  // Open sizes, at three of them.
  for (int i = 0; i < 3; i++) {
    size_t count = (size_t)(shapes[i][0] * shapes[i][1]);
    graphc_tensor *x = floats(shapes[i], 2, values, count);
    graphc_tensor *y = run_one(session, x);
    graphc_tensor_info info;
    GOOD(graphc_tensor_describe(y, &info));
    EXPECT(info.rank == 2 && info.shape[0] == shapes[i][0] && info.shape[1] == shapes[i][1]);
    EXPECT(info.bytes == count * 4 && info.dtype == GRAPHC_DTYPE_F32 && strcmp(info.device, "cpu") == 0);
    for (size_t at = 0; at < count; at++) EXPECT(data_of(y)[at] == 2 * values[at]);
    graphc_tensor_free(x);
    graphc_tensor_free(y);
  }
  // Wrong inputs say what is wrong, and what the model has.
  const int64_t flat[1] = {6};
  graphc_tensor *x = floats(flat, 1, values, 6);
  const char *names[2] = {"x", "x"};
  const graphc_tensor *twice[2] = {x, x};
  FAILS(graphc_session_run(session, names, twice, 1, &outputs), GRAPHC_CODE_INPUT, "inputs are x: f32[n, m]");
  EXPECT(outputs == NULL);
  FAILS(graphc_session_run(session, names, twice, 2, &outputs), GRAPHC_CODE_ARGUMENT, "given twice");
  FAILS(graphc_session_run(session, NULL, twice, 2, &outputs), GRAPHC_CODE_ARGUMENT, "the session has 1 inputs");
  FAILS(graphc_session_run(session, NULL, NULL, 0, &outputs), GRAPHC_CODE_INPUT, "input \"x\" is missing");
  names[0] = "z";
  FAILS(graphc_session_run(session, names, twice, 1, &outputs), GRAPHC_CODE_INPUT, "no input \"z\"");
  names[0] = NULL;
  FAILS(graphc_session_run(session, names, twice, 1, &outputs), GRAPHC_CODE_ARGUMENT, "name 0 is null");
  twice[0] = NULL;
  FAILS(graphc_session_run(session, NULL, twice, 1, &outputs), GRAPHC_CODE_ARGUMENT, "tensor 0 is null");
  FAILS(graphc_session_run(NULL, NULL, twice, 1, &outputs), GRAPHC_CODE_ARGUMENT, "session is null");
  graphc_tensor_free(x);
  GOOD(graphc_tensor_new(GRAPHC_DTYPE_I32, shapes[0], 2, values, 24, &x));
  twice[0] = x;
  FAILS(graphc_session_run(session, NULL, twice, 1, &outputs), GRAPHC_CODE_INPUT, "is i32, but the model declares f32");
  graphc_tensor_free(x);

  // Not waited for; outputs left on the device are inputs of the next run.
  x = floats(shapes[0], 2, values, 6);
  for (int i = 0; i < 4; i++) {
    graphc_run *run = NULL;
    const graphc_tensor *one = x;
    GOOD(graphc_session_submit(session, NULL, &one, 1, GRAPHC_PLACE_DEVICE, &run));
    graphc_tensor_free(x);
    GOOD(graphc_run_wait(run, &outputs));
    EXPECT(graphc_run_is_done(run) == 1);
    graphc_outputs *again = NULL;
    FAILS(graphc_run_wait(run, &again), GRAPHC_CODE_ARGUMENT, "waited for already");
    graphc_run_free(run);
    EXPECT(graphc_outputs_count(outputs) == 1 && strcmp(graphc_outputs_name(outputs, 0), "y") == 0);
    EXPECT(graphc_outputs_name(outputs, 1) == NULL && graphc_outputs_count(NULL) == 0);
    GOOD(graphc_outputs_find(outputs, "y", &x));
    graphc_tensor *none = NULL;
    FAILS(graphc_outputs_find(outputs, "x", &none), GRAPHC_CODE_ARGUMENT, "there are y");
    FAILS(graphc_outputs_get(outputs, 1, &none), GRAPHC_CODE_ARGUMENT, "no output 1");
    graphc_outputs_free(outputs);
  }
  graphc_tensor *host = NULL, *shared = NULL, *up = NULL;
  GOOD(graphc_tensor_to_host(x, &host));
  GOOD(graphc_tensor_share(host, &shared));
  graphc_tensor_free(host);
  for (int at = 0; at < 6; at++) EXPECT(data_of(shared)[at] == 16 * values[at]);
  GOOD(graphc_session_upload(session, shared, &up));
  host = run_one(session, up);
  EXPECT(data_of(host)[5] == 192);
  graphc_tensor_free(host);
  graphc_tensor_free(up);
  graphc_tensor_free(shared);

  graphc_run *run = NULL;
  const graphc_tensor *one = x;
  FAILS(graphc_session_submit(session, NULL, &one, 1, 7, &run), GRAPHC_CODE_ARGUMENT, "GRAPHC_PLACE_");
  // Freed before it is waited for.
  GOOD(graphc_session_submit(session, NULL, &one, 1, GRAPHC_PLACE_HOST, &run));
  graphc_run_free(run);
  char *text = NULL;
  GOOD(graphc_session_profile(session, NULL, &one, 1, 3, &text));
  EXPECT(strstr(text, "\"steps\"") != NULL);
  graphc_text_free(text);
  FAILS(graphc_session_profile(session, NULL, &one, 1, 0, &text), GRAPHC_CODE_ARGUMENT, "runs is 0");
  graphc_tensor_free(x);
  graphc_session_free(session);
}

static int released;
static void release(void *context) {
  released++;
  free(context);
}

static void tensors(void) {
  graphc_tensor *tensor = NULL;
  const int64_t shape[2] = {2, 2}, negative[1] = {-1}, huge[3] = {INT64_MAX, INT64_MAX, 4};
  float values[4] = {1, 2, 3, 4};
  FAILS(graphc_tensor_new(99, shape, 2, values, 16, &tensor), GRAPHC_CODE_ARGUMENT, "dtype 99");
  FAILS(graphc_tensor_new(GRAPHC_DTYPE_F32, shape, 2, values, 12, &tensor), GRAPHC_CODE_ARGUMENT, "takes 16 bytes");
  FAILS(graphc_tensor_new(GRAPHC_DTYPE_F32, negative, 1, values, 4, &tensor), GRAPHC_CODE_ARGUMENT, "below 0");
  FAILS(graphc_tensor_new(GRAPHC_DTYPE_F32, huge, 3, values, 4, &tensor), GRAPHC_CODE_ARGUMENT, "more than there");
  FAILS(graphc_tensor_new(GRAPHC_DTYPE_F32, NULL, 2, values, 16, &tensor), GRAPHC_CODE_ARGUMENT, "shape is null");
  FAILS(graphc_tensor_new(GRAPHC_DTYPE_F32, shape, 2, values, 16, NULL), GRAPHC_CODE_ARGUMENT, "out is null");
  FAILS(graphc_tensor_borrow(GRAPHC_DTYPE_F32, shape, 2, NULL, 16, release, NULL, &tensor), GRAPHC_CODE_ARGUMENT,
        "data is null");
  FAILS(graphc_tensor_describe(NULL, NULL), GRAPHC_CODE_ARGUMENT, "tensor is null");
  EXPECT(tensor == NULL);

  // Every type has its size and goes out and in by DLPack.
  const size_t bytes[16] = {16, 8, 8, 32, 4, 4, 4, 4, 32, 16, 8, 4, 4, 2, 2, 4};
  for (int32_t dtype = GRAPHC_DTYPE_F32; dtype <= GRAPHC_DTYPE_BOOL; dtype++) {
    unsigned char raw[32];
    for (int at = 0; at < 32; at++) raw[at] = (unsigned char)(dtype == GRAPHC_DTYPE_BOOL ? at % 2 : 7 * at);
    GOOD(graphc_tensor_new(dtype, shape, 2, raw, bytes[dtype], &tensor));
    DLManagedTensorVersioned *managed = NULL;
    GOOD(graphc_tensor_to_dlpack(tensor, &managed));
    graphc_tensor_free(tensor);
    EXPECT(managed->version.major == 1 && managed->flags == 1 && managed->dl_tensor.device.device_type == 1);
    EXPECT(managed->dl_tensor.ndim == 2 && managed->dl_tensor.shape[1] == 2 && managed->dl_tensor.strides[0] == 2);
    const void *at = managed->dl_tensor.data, *back = NULL;
    GOOD(graphc_tensor_from_dlpack(managed, NULL, &tensor));
    GOOD(graphc_tensor_data(tensor, &back));
    graphc_tensor_info info;
    GOOD(graphc_tensor_describe(tensor, &info));
    EXPECT(info.dtype == dtype && info.bytes == bytes[dtype] && at == back && memcmp(back, raw, info.bytes) == 0);
    graphc_tensor_free(tensor);
  }
  // A scalar, and nothing at all.
  GOOD(graphc_tensor_new(GRAPHC_DTYPE_F32, NULL, 0, values, 4, &tensor));
  graphc_tensor_free(tensor);
  const int64_t empty[2] = {0, 3};
  GOOD(graphc_tensor_borrow(GRAPHC_DTYPE_F32, empty, 2, NULL, 0, NULL, NULL, &tensor));
  graphc_session *session = open_text(DOUBLE, NULL);
  const graphc_tensor *one = tensor;
  graphc_outputs *outputs = NULL;
  // Sizes begin at 1 where the model does not say otherwise.
  FAILS(graphc_session_run(session, NULL, &one, 1, &outputs), GRAPHC_CODE_INPUT, "n");
  graphc_session *from_0 = open_text("graph @g stage=import {\n  symbol n: 0.. hint 2\n  x = input \"x\" : f32[n, 3]\n"
                                     "  y = add x, x\n  return y as \"y\"\n}\n", NULL);
  graphc_tensor *none = run_one(from_0, tensor);
  graphc_tensor_info info;
  GOOD(graphc_tensor_describe(none, &info));
  EXPECT(info.bytes == 0 && info.shape[0] == 0 && info.shape[1] == 3);
  graphc_tensor_free(none);
  graphc_tensor_free(tensor);
  graphc_session_free(from_0);

  // Borrowed memory is where it was, and let go of once, after its last user.
  float *mine = malloc(16);
  EXPECT(mine != NULL);
  memcpy(mine, values, 16);
  GOOD(graphc_tensor_borrow(GRAPHC_DTYPE_F32, shape, 2, mine, 16, release, mine, &tensor));
  EXPECT((const void *)data_of(tensor) == mine);
  graphc_tensor *shared = NULL;
  GOOD(graphc_tensor_share(tensor, &shared));
  graphc_tensor_free(tensor);
  EXPECT(released == 0);
  graphc_run *run = NULL;
  one = shared;
  GOOD(graphc_session_submit(session, NULL, &one, 1, GRAPHC_PLACE_HOST, &run));
  graphc_tensor_free(shared);
  GOOD(graphc_run_wait(run, &outputs));
  graphc_run_free(run);
  GOOD(graphc_outputs_get(outputs, 0, &tensor));
  EXPECT(data_of(tensor)[3] == 8);
  graphc_tensor_free(tensor);
  graphc_outputs_free(outputs);
  // The thread of the run lets go when it is done with it.
  graphc_session_free(session);
  for (int i = 0; i < 100000 && __atomic_load_n(&released, __ATOMIC_ACQUIRE) == 0; i++) {
    struct timespec moment = {0, 100000};
    nanosleep(&moment, NULL);
  }
  EXPECT(released == 1);
  // Floats at an odd address are copied, and let go of at once.
  char *odd = malloc(17);
  EXPECT(odd != NULL);
  memcpy(odd + 1, values, 16);
  GOOD(graphc_tensor_borrow(GRAPHC_DTYPE_F32, shape, 2, odd + 1, 16, release, odd, &tensor));
  EXPECT(released == 2 && data_of(tensor)[3] == 4);
  graphc_tensor_free(tensor);
}

static int deleted;
static void delete_versioned(DLManagedTensorVersioned *self) {
  (void)self;
  deleted++;
}
static void delete_old(DLManagedTensor *self) {
  (void)self;
  deleted++;
}

static void dlpack(void) {
  float values[6] = {1, 2, 3, 4, 5, 6};
  int64_t shape[2] = {3, 2}, strides[2] = {1, 3};
  DLManagedTensorVersioned managed = {.version = {1, 1}, .deleter = delete_versioned};
  managed.dl_tensor = (DLTensor){.data = values, .device = {1, 0}, .ndim = 2, .dtype = {2, 32, 1}, .shape = shape};
  graphc_tensor *tensor = NULL;
  GOOD(graphc_tensor_from_dlpack(&managed, NULL, &tensor));
  EXPECT(data_of(tensor) == values && deleted == 0);
  graphc_tensor_free(tensor);
  EXPECT(deleted == 1);
  // Columns become rows.
  managed.dl_tensor.strides = strides;
  GOOD(graphc_tensor_from_dlpack(&managed, NULL, &tensor));
  EXPECT(deleted == 2);
  const float rows[6] = {1, 4, 2, 5, 3, 6};
  EXPECT(memcmp(data_of(tensor), rows, 24) == 0);
  graphc_tensor_free(tensor);
  // A failure leaves the tensor where it is.
  managed.version.major = 2;
  FAILS(graphc_tensor_from_dlpack(&managed, NULL, &tensor), GRAPHC_CODE_UNSUPPORTED, "version 2.1");
  managed.version.major = 1;
  managed.dl_tensor.dtype.code = 5;
  FAILS(graphc_tensor_from_dlpack(&managed, NULL, &tensor), GRAPHC_CODE_UNSUPPORTED, "code 5");
  managed.dl_tensor.dtype.code = 2;
  managed.dl_tensor.device.device_type = 8;
  FAILS(graphc_tensor_from_dlpack(&managed, NULL, &tensor), GRAPHC_CODE_UNSUPPORTED, "device type 8");
  managed.dl_tensor.device.device_type = 10;
  FAILS(graphc_tensor_from_dlpack(&managed, NULL, &tensor), GRAPHC_CODE_UNSUPPORTED, "on hip:0");
  graphc_session *session = open_text(DOUBLE, NULL);
  FAILS(graphc_tensor_from_dlpack(&managed, session, &tensor), GRAPHC_CODE_UNSUPPORTED, "the session is on cpu");
  graphc_session_free(session);
  shape[0] = -1;
  managed.dl_tensor.device.device_type = 1;
  FAILS(graphc_tensor_from_dlpack(&managed, NULL, &tensor), GRAPHC_CODE_ARGUMENT, "below 0");
  FAILS(graphc_tensor_from_dlpack(NULL, NULL, &tensor), GRAPHC_CODE_ARGUMENT, "null");
  EXPECT(deleted == 2 && tensor == NULL);

  shape[0] = 3;
  DLManagedTensor old = {.deleter = delete_old, .dl_tensor = managed.dl_tensor};
  old.dl_tensor.strides = NULL;
  old.dl_tensor.byte_offset = 4;
  shape[0] = 2;
  GOOD(graphc_tensor_from_dlpack_unversioned(&old, NULL, &tensor));
  EXPECT(data_of(tensor) == values + 1);
  DLManagedTensor *lent = NULL;
  GOOD(graphc_tensor_to_dlpack_unversioned(tensor, &lent));
  graphc_tensor_free(tensor);
  EXPECT(deleted == 2 && lent->dl_tensor.data == values + 1);
  lent->deleter(lent);
  EXPECT(deleted == 3);
}

static const char *SUM = "graph @sum stage=import {\n  x = input \"x\" : f32[2]\n  s = input \"s\" : f32[2]\n"
                         "  y = add x, s\n  z = add y, y\n  return y as \"next\", z as \"z\"\n}\n";

static void states(void) {
  graphc_options *options = NULL;
  GOOD(graphc_options_new(&options));
  GOOD(graphc_options_set(options, "state", "s=next"));
  graphc_session *session = open_text(SUM, options);
  graphc_options_free(options);
  EXPECT(graphc_session_input_count(session) == 1 && graphc_session_output_count(session) == 1);
  EXPECT(graphc_session_state_count(session) == 1);
  graphc_port port;
  GOOD(graphc_session_state(session, 0, &port));
  EXPECT(strcmp(port.name, "s") == 0);
  const int64_t shape[1] = {2};
  const float values[2] = {1, 2}, start[2] = {10, 20};
  graphc_tensor *x = floats(shape, 1, values, 2), *s = floats(shape, 1, start, 2), *y = NULL;
  for (int turn = 1; turn <= 3; turn++) {
    y = run_one(session, x);
    EXPECT(data_of(y)[1] == 4.0f * (float)turn);
    graphc_tensor_free(y);
  }
  graphc_session *fork = NULL;
  GOOD(graphc_session_fork(session, &fork));
  GOOD(graphc_session_state_set(session, "s", s));
  y = run_one(session, x);
  EXPECT(data_of(y)[0] == 22);
  graphc_tensor_free(y);
  y = run_one(fork, x);
  EXPECT(data_of(y)[0] == 8);
  graphc_tensor_free(y);
  graphc_session_free(fork);
  GOOD(graphc_session_state_get(session, "s", &y));
  EXPECT(data_of(y)[0] == 11 && data_of(y)[1] == 22);
  graphc_tensor_free(y);
  GOOD(graphc_session_state_reset(session));
  GOOD(graphc_session_state_get(session, "s", &y));
  EXPECT(data_of(y)[0] == 0);
  graphc_tensor_free(y);
  FAILS(graphc_session_state_get(session, "t", &y), GRAPHC_CODE_ARGUMENT, "it has s");
  FAILS(graphc_session_state_set(session, "t", s), GRAPHC_CODE_INPUT, "t");
  FAILS(graphc_session_state_set(session, "s", NULL), GRAPHC_CODE_ARGUMENT, "tensor is null");
  FAILS(graphc_session_state_reset(NULL), GRAPHC_CODE_ARGUMENT, "session is null");
  char *text = NULL;
  const graphc_tensor *one = x;
  GOOD(graphc_session_profile(session, NULL, &one, 1, 2, &text));
  graphc_text_free(text);
  graphc_tensor_free(x);
  graphc_tensor_free(s);
  graphc_session_free(session);
}

struct work {
  const graphc_session *session;
  int number;
};

static void *work(void *given) {
  struct work *work = given;
  for (int turn = 0; turn < 20; turn++) {
    const int64_t shape[2] = {1 + work->number % 5, 1 + turn % 7};
    size_t count = (size_t)(shape[0] * shape[1]);
    float values[35];
    for (size_t at = 0; at < count; at++) values[at] = (float)(100 * work->number + (int)at);
    graphc_tensor *x = floats(shape, 2, values, count);
    graphc_tensor *y = NULL;
    if (turn % 2 == 0) {
      y = run_one(work->session, x);
    } else {
      graphc_run *run = NULL;
      graphc_outputs *outputs = NULL;
      const graphc_tensor *one = x;
      GOOD(graphc_session_submit(work->session, NULL, &one, 1, GRAPHC_PLACE_HOST, &run));
      GOOD(graphc_run_wait(run, &outputs));
      GOOD(graphc_outputs_get(outputs, 0, &y));
      graphc_run_free(run);
      graphc_outputs_free(outputs);
    }
    for (size_t at = 0; at < count; at++) EXPECT(data_of(y)[at] == 2 * values[at]);
    graphc_tensor_free(x);
    graphc_tensor_free(y);
  }
  return NULL;
}

static void threads(void) {
  graphc_session *session = open_text(DOUBLE, NULL);
  pthread_t threads[16];
  struct work works[16];
  for (int i = 0; i < 16; i++) {
    works[i] = (struct work){session, i};
    EXPECT(pthread_create(&threads[i], NULL, work, &works[i]) == 0);
  }
  for (int i = 0; i < 16; i++) EXPECT(pthread_join(threads[i], NULL) == 0);
  graphc_session_free(session);
}

// A model of ours whose output has as many rows as its input has other elements than 0.
static void data_decide(const char *path) {
  graphc_model *model = NULL;
  graphc_session *session = NULL;
  GOOD(graphc_model_from_file(path, &model));
  FAILS(graphc_session_new(model, NULL, &session), GRAPHC_CODE_MODEL, "NonZero");
  const int64_t shape[1] = {4};
  const float values[4] = {5, 0, 7, 0};
  graphc_tensor *x = floats(shape, 1, values, 4);
  const char *name = "x";
  const graphc_tensor *one = x;
  char *reason = NULL;
  FAILS(graphc_session_new_for(model, NULL, NULL, &one, 1, &reason, &session), GRAPHC_CODE_ARGUMENT, "names is null");
  GOOD(graphc_session_new_for(model, NULL, &name, &one, 1, &reason, &session));
  EXPECT(reason != NULL && strstr(reason, "NonZero") != NULL);
  graphc_text_free(reason);
  graphc_tensor *y = run_one(session, x);
  graphc_tensor_info info;
  const void *data = NULL;
  GOOD(graphc_tensor_describe(y, &info));
  GOOD(graphc_tensor_data(y, &data));
  EXPECT(info.rank == 2 && info.shape[1] == 2 && ((const int64_t *)data)[1] == 2);
  graphc_tensor_free(y);
  graphc_tensor_free(x);
  graphc_session_free(session);
  graphc_model_free(model);
}

int main(int count, char **arguments) {
  if (count != 4) return 2;
  versions();
  options();
  models(arguments[1], arguments[3]);
  ports();
  runs();
  tensors();
  dlpack();
  states();
  threads();
  data_decide(arguments[2]);
  printf("every call did as it says\n");
  return 0;
}
