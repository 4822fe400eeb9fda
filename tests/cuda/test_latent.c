/* Latent attention on a GPU against the scalar reference. */
#include "cuda/latent_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latent_packings_have_every_head_once), cmocka_unit_test(latent_rows_have_the_reference_bits),
        cmocka_unit_test(latent_products_have_the_bits_of_chains), cmocka_unit_test(latent_attention_of_any_widths),
        cmocka_unit_test(latent_attention_on_tensor_cores)};
    return run_gpu_tests(tests, 1, "latent", NULL, NULL);
}
