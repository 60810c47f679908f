# See images/docker-bake.hcl. What the arguments mean stands in the Dockerfile.

variable "CPU_TORCH" { default = "1" }
variable "FBGEMM" { default = "0" }
variable "STOCK21" { default = "0" }

target "dlrm" {
  name       = "dlrm-${flavour}"
  matrix     = { flavour = ["cpu", "cuda"] }
  inherits   = ["_native-${flavour}"]
  dockerfile = "dlrm/Dockerfile"
  args       = { CPU_TORCH = CPU_TORCH, FBGEMM = FBGEMM, STOCK21 = STOCK21 }
  tags       = ["ae/dlrm:${flavour}"]
  cache-from = AE_CACHE == "" ? [] : ["type=registry,ref=${AE_CACHE}/dlrm:${flavour}"]
  labels     = { "org.opencontainers.image.title" = "ae/dlrm", "org.opencontainers.image.description" = "Embedding-bag inference on GPUs: the workload of the recipe dlrm" }
}
