// Classifies images by a model whose first size is open: opens it, prints what it takes, and runs it on all of them.
//
// usage: classify MODEL IMAGES.f32 ROWS
// The file holds ROWS images one after the other, as the model's first input has them.
//
//   cc -std=c11 classify.c $(pkg-config --cflags --libs graphc) -o classify

#include <graphc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

// Ends the program where a call failed.
static void check(graphc_status *status) {
  if (status == NULL) return;
  fprintf(stderr, "classify: %s (code %" PRId32 ")\n", graphc_status_message(status), graphc_status_code(status));
  graphc_status_free(status);
  exit(1);
}

static void print_port(const char *what, const graphc_port *port) {
  printf("%s %s: dtype %" PRId32 " [", what, port->name, port->dtype);
  for (size_t axis = 0; axis < port->rank; axis++) printf("%s%s", axis ? ", " : "", port->labels[axis]);
  printf("]\n");
}

// Reads a whole file; the caller frees it.
static void *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  void *bytes = malloc(*size);
  if (bytes == NULL || fread(bytes, 1, *size, file) != *size) {
    fprintf(stderr, "%s: cannot be read\n", path);
    exit(1);
  }
  fclose(file);
  return bytes;
}

int main(int count, char **arguments) {
  if (count != 4) {
    fprintf(stderr, "usage: classify MODEL IMAGES.f32 ROWS\n");
    return 2;
  }
  if (graphc_api_version() / 100 != GRAPHC_API_VERSION / 100) {
    fprintf(stderr, "the library has another interface than this program\n");
    return 2;
  }

  graphc_options *options = NULL;
  check(graphc_options_new(&options));
  check(graphc_options_set(options, "device", "cpu"));
  check(graphc_options_set(options, "threads", "2"));

  graphc_model *model = NULL;
  graphc_session *session = NULL;
  check(graphc_model_from_file(arguments[1], &model));
  check(graphc_session_new(model, options, &session));
  graphc_model_free(model);
  graphc_options_free(options);

  graphc_port input, output;
  check(graphc_session_input(session, 0, &input));
  check(graphc_session_output(session, 0, &output));
  printf("on %s\n", graphc_session_device(session));
  print_port("input", &input);
  print_port("output", &output);

  // The first size is open: it is the number of images.
  int64_t shape[8] = {strtoll(arguments[3], NULL, 10)};
  for (size_t axis = 1; axis < input.rank && axis < 8; axis++) shape[axis] = input.sizes[axis];
  size_t bytes = 0;
  void *images = read_file(arguments[2], &bytes);

  // The memory is not copied: it is freed when the tensor and the run that uses it are gone.
  graphc_tensor *tensor = NULL;
  check(graphc_tensor_borrow(input.dtype, shape, input.rank, images, bytes, free, images, &tensor));
  graphc_outputs *outputs = NULL;
  check(graphc_session_run(session, &input.name, (const graphc_tensor *const *)&tensor, 1, &outputs));
  graphc_tensor_free(tensor);

  graphc_tensor *logits = NULL;
  graphc_tensor_info info;
  const void *data = NULL;
  check(graphc_outputs_find(outputs, output.name, &logits));
  check(graphc_tensor_describe(logits, &info));
  check(graphc_tensor_data(logits, &data));
  for (int64_t row = 0; row < info.shape[0]; row++) {
    const float *scores = (const float *)data + row * info.shape[1];
    for (int64_t class = 0; class < info.shape[1]; class++) printf("%s%.9g", class ? " " : "", scores[class]);
    printf("\n");
  }

  graphc_tensor_free(logits);
  graphc_outputs_free(outputs);
  graphc_session_free(session);
  return 0;
}
