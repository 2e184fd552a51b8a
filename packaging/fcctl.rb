# A Homebrew formula for a tap, homebrew-NAME/Formula/fcctl.rb; `brew install NAME/NAME/fcctl` installs it. After a release:
#
#   brew update-python-resources --version X.Y.Z Formula/fcctl.rb \
#     --exclude-packages numpy,scipy,cryptography          # writes a resource for each requirement
#   shasum -a 256 fcctl-X.Y.Z.tar.gz                       # of PyPI's file: the sha256 below
#   brew install --build-from-source Formula/fcctl.rb && brew test fcctl && brew audit --strict fcctl
class Fcctl < Formula
  include Language::Python::Virtualenv

  desc "Runs CUDA kernels on a remote GPU machine and never spends more than its limit"
  homepage "https://pypi.org/project/fcctl/"
  url "https://files.pythonhosted.org/packages/source/f/fcctl/fcctl-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "Apache-2.0"

  depends_on "rust" => :build # pydantic-core
  depends_on "cryptography"
  depends_on "libyaml"
  depends_on "numpy"
  depends_on "python@3.13"
  depends_on "rsync" # Apple's is openrsync
  depends_on "scipy"
  depends_on "tmux"

  # The resources go here.

  def install
    virtualenv_install_with_resources
    generate_completions_from_executable(bin/"fcctl", "completion")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/fcctl --version")
    system bin/"fcctl", "init", "--example", "flashcore", "fc"
    assert_match "phase0", shell_output("#{bin}/fcctl -C fc jobs ls")
  end
end
