# See images/docker-bake.hcl. What the arguments mean stands in the Dockerfile.

variable "TORCHREC" { default = "0" }
variable "GUROBI" { default = "0" }

target "rap" {
  name       = "rap-${flavour}"
  matrix     = { flavour = ["cpu", "cuda"] }
  inherits   = ["_native-${flavour}"]
  dockerfile = "rap/Dockerfile"
  args       = { TORCHREC = TORCHREC, GUROBI = GUROBI }
  tags       = ["ae/rap:${flavour}"]
  cache-from = AE_CACHE == "" ? [] : ["type=registry,ref=${AE_CACHE}/rap:${flavour}"]
  labels     = { "org.opencontainers.image.title" = "ae/rap", "org.opencontainers.image.description" = "Preprocessing that shares the GPU with recommendation training: the workload of the recipe rap" }
}
