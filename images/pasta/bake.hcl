# See images/docker-bake.hcl. What the arguments mean stands in the Dockerfile.

target "pasta" {
  name       = "pasta-${flavour}"
  matrix     = { flavour = ["cpu", "cuda"] }
  inherits   = ["_native-${flavour}"]
  dockerfile = "pasta/Dockerfile"
  tags       = ["ae/pasta:${flavour}"]
  cache-from = AE_CACHE == "" ? [] : ["type=registry,ref=${AE_CACHE}/pasta:${flavour}"]
  labels     = { "org.opencontainers.image.title" = "ae/pasta", "org.opencontainers.image.description" = "Program analysis on GPUs: the collector accel-trace and the workloads of the recipe pasta" }
}
