target "toy" {
  name       = "toy-${flavour}"
  matrix     = { flavour = ["cpu", "cuda"] }
  inherits   = ["_native-${flavour}"]
  dockerfile = "toy/Dockerfile"
  tags       = ["ae/toy:${flavour}"]
}
