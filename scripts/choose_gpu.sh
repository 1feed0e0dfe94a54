# Sourced by scripts/lessons: which nvcc, which GPUs, and what to say where none can be used. The CUDA runtime is asked
# (scripts/gpus.cu, built by the nvcc that will build the days); nvidia-smi only explains why the runtime sees nothing.
# The current folder is the root of the repository.
# shellcheck shell=bash

# What the days need of a toolkit, here and in CMakeLists.txt, which has the reasons.
toolkit_oldest=11.8
toolkit_oldest_for_sm_90=12.0
architecture_oldest=75
newer_toolkit="a newer one is at https://developer.nvidia.com/cuda-downloads; then export CUDACXX=/path/to/nvcc"

# ask SECONDS COMMAND...: runs a child whose output is read here: in English, and not for ever. By env: bash itself would
# warn, among that output, of the reader's own LC_ALL where it names a locale that is not installed.
ask() { env LC_ALL=C timeout -k 5 "$@" </dev/null; }

at_least() { printf '%s\n' "$1" "$2" | sort -V -C; } # at_least OLDEST VERSION

on_wsl() { [[ ${WSL_DISTRO_NAME-} || -d /usr/lib/wsl/lib ]]; }

no_gpu() { # no_gpu WHAT_IS_THERE WAY_OUT
  printf '%s\n' "No GPU is used: $1" "$2" "Going on without one: the CPU checks the days."
}

# Sets `nvcc` and `nvcc_options`. The places are those of CMakeLists.txt; a CUDACXX that is set but empty says that there
# is none.
find_nvcc() {
  local candidate candidates=(
    "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" nvcc /usr/local/cuda/bin/nvcc)
  nvcc_options=()
  if [[ ${CUDACXX+set} ]]; then
    candidates=("$CUDACXX")
    if [[ $CUDACXX == *" "* && ! -x $CUDACXX ]]; then
      candidates=("${CUDACXX%% *}")
      read -ra nvcc_options <<<"${CUDACXX#* }"
    fi
  fi
  for candidate in "${candidates[@]}"; do
    if [[ $candidate ]] && nvcc=$(command -v "$candidate"); then return 0; fi
  done
  return 1
}

# Sets `smi_cards`, the names that nvidia-smi lists, and `smi_says`, the same in words or why it lists none.
ask_smi() {
  local smi answer status=0
  smi_cards=''
  if ! smi=$(command -v nvidia-smi || command -v /usr/lib/wsl/lib/nvidia-smi); then
    smi_says="there is no nvidia-smi"
    return 0
  fi
  answer=$(ask 20 "$smi" -L 2>&1) || status=$?
  smi_cards=$(sed -n 's/^GPU [0-9]*: \(.*\) (UUID.*/\1/p' <<<"$answer" | paste -sd ';' | sed 's/;/, /g')
  case $status in
    0) smi_says="nvidia-smi lists ${smi_cards:-no GPU}" ;;
    124 | 137) smi_says="nvidia-smi was killed or gave no answer within 20 s (exit code $status)" ;;
    *) smi_says="nvidia-smi says \"$(paste -sd ' ' <<<"$answer")\" (exit code $status)" ;;
  esac
}

cards_on_pci() { # prints the addresses of NVIDIA's cards, whether or not there is a driver for them
  local device
  for device in /sys/bus/pci/devices/*; do
    # 0x10de is NVIDIA; 0x03 is the class of display controllers, also of those that drive no display.
    if [[ -r $device/class && $(<"$device/vendor") == 0x10de && $(<"$device/class") == 0x03* ]]; then
      echo "${device##*/}"
    fi
  done | paste -sd ' '
}

# explain_no_compiler REASON WAY_OUT: there is no nvcc that compiles.
explain_no_compiler() {
  ask_smi
  if [[ $smi_cards ]]; then
    no_gpu "there is one ($smi_cards), but $1." "$2"
  else
    # Without nvcc this may be a machine without any GPU: the driver comes first.
    no_gpu "$smi_says, and $1." "${nvcc:+$2 }$(where_no_card_is_seen '?' "$smi_says")"
  fi
}

# explain_no_card TOOLKIT DRIVER ERROR: the CUDA runtime of that version lists no card; the others are its answers.
explain_no_card() {
  local fits=$2 way_out
  ask_smi
  if [[ $3 == cudaErrorInsufficientDriver* && $2 != 0.0 ]]; then
    if [[ $2 == 11.* ]]; then fits=$toolkit_oldest; fi # runs on every driver of CUDA 11
    way_out="Update the NVIDIA driver"
    if on_wsl; then way_out+=" of Windows"; fi
    if at_least "$toolkit_oldest" "$fits"; then
      way_out+=", or build with CUDA $fits (https://developer.nvidia.com/cuda-toolkit-archive; then export CUDACXX=/path/to/nvcc)"
    fi
    no_gpu "the driver knows CUDA up to $2, and $nvcc is of CUDA $1, which is too new for it; $smi_says." "$way_out."
  elif [[ $2 == 0.0 ]]; then
    no_gpu "no NVIDIA driver is visible, and $smi_says." "$(where_no_card_is_seen "$2" "$smi_says")"
  else
    no_gpu "the CUDA runtime lists none ($3), and $smi_says." "$(where_no_card_is_seen "$2" "$3 $smi_says")"
  fi
}

# where_no_card_is_seen DRIVER COMPLAINTS: prints the way out. The driver is ? where the runtime was not asked.
where_no_card_is_seen() {
  local pci where="Where there is a GPU"
  pci=$(cards_on_pci)
  if [[ $pci ]]; then where="An NVIDIA card is there (PCI $pci)"; fi
  if [[ $2 == *[Mm]ismatch* ]]; then
    echo "The driver was updated while its older part still runs: reboot."
  elif [[ $1 != 0.0 && $1 != '?' && ${CUDA_VISIBLE_DEVICES+set} ]]; then
    echo "CUDA_VISIBLE_DEVICES is '$CUDA_VISIBLE_DEVICES': unset it, or let it name a GPU that is there."
  elif on_wsl; then
    echo "This is WSL: update the NVIDIA driver of Windows, then run wsl --shutdown there; WSL takes no driver of its own."
  elif [[ $1 == 0.0 && $smi_cards ]]; then
    echo "The driver's libcuda.so.1 is missing: install it; a container gets it with NVIDIA_DRIVER_CAPABILITIES=compute,utility."
  elif [[ $2 == "there is no nvidia-smi" ]]; then
    echo "$where: install the NVIDIA driver; a container is started with --gpus all."
  else
    echo "$where: reboot; if that does not help, install its driver anew; a container is started with --gpus all."
  fi
}

# Builds scripts/gpus.cu. Where that fails nvcc compiles nothing here: sets `reason` and `way_out`.
build_probe() {
  local log=build/gpus.log said newest older host_compiler=()
  if [[ ${CUDAHOSTCXX-} ]]; then host_compiler=(-ccbin "$CUDAHOSTCXX"); fi
  rm -f build/gpus
  if env LC_ALL=C "$nvcc" "${nvcc_options[@]}" "${host_compiler[@]}" -o build/gpus scripts/gpus.cu >"$log" 2>&1 </dev/null; then
    return 0
  fi
  said=$(sed -n '/error\|fatal/{p;q}' "$log")
  reason="$nvcc compiles nothing here: ${said:-it names no error}"
  way_out="All that it said is in $log; another nvcc is chosen with export CUDACXX=/path/to/nvcc."
  if grep -q 'unsupported [A-Za-z]* version!' "$log"; then
    reason="$nvcc refuses its host compiler: $(sed -n '/unsupported [A-Za-z]* version!/{s/.*\(unsupported [A-Za-z]* version![^!]*\).*/\1/p;q}' "$log")"
    way_out="Choose one that is old enough: export CUDAHOSTCXX=/path/to/g++-NN."
    newest=$(sed -n '/gcc versions later than/{s/.*later than \([0-9]*\).*/\1/p;q}' "$log")
    if [[ $newest ]]; then
      way_out="On Debian and Ubuntu: apt-get install g++-$newest; then export CUDAHOSTCXX=g++-$newest."
      for ((older = newest; older >= 9; older--)); do
        if command -v "g++-$older" >/dev/null; then
          way_out="One that it takes is here: export CUDAHOSTCXX=g++-$older."
          break
        fi
      done
    fi
  fi
  return 1
}

# Sets `obstacle`, why the days cannot be built for sm_$1; empty: they can.
judge_architecture() {
  obstacle=''
  if (($1 < architecture_oldest)); then
    obstacle="the days start at sm_$architecture_oldest (Turing: Tesla T4, RTX 20)"
  elif ! at_least "$toolkit_oldest" "$toolkit"; then
    obstacle="CUDA $toolkit ($nvcc) is too old, the days need $toolkit_oldest: $newer_toolkit"
  elif (($1 >= 90)) && ! at_least "$toolkit_oldest_for_sm_90" "$toolkit"; then
    obstacle="CUDA $toolkit ($nvcc) is too old, from sm_90 on the days need $toolkit_oldest_for_sm_90: $newer_toolkit"
  elif [[ " $buildable " != *" $1 "* ]]; then
    obstacle="CUDA $toolkit ($nvcc) does not know sm_$1: $newer_toolkit"
  fi
}

# Sets `backend`: cpu, or cuda with `nvcc`, `architectures` to build for (75;90a), and the card to run on: `device`, its
# index, and `architecture`.
# shellcheck disable=SC2034 # all of them are read where this is sourced
choose_backend() {
  local key index capability pci uuid state name card obstacle reason way_out facts status=0
  local toolkit buildable runtime driver='?' error='no reason given' used='' built=() others=()
  backend=cpu architectures='' architecture='' device=''
  if ! find_nvcc; then
    reason="no nvcc, which compiles for it"
    if [[ ${CUDACXX-} ]]; then reason="CUDACXX is '$CUDACXX', which is no program"; fi
    explain_no_compiler "$reason" \
      "It is in the CUDA Toolkit, https://developer.nvidia.com/cuda-downloads; where it is installed, export CUDACXX=/path/to/nvcc."
    return 0
  fi
  if ! build_probe; then
    explain_no_compiler "$reason" "$way_out"
    return 0
  fi
  toolkit=$(ask 20 "$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') || true
  buildable=$(ask 20 "$nvcc" --list-gpu-arch | sed -n 's/^compute_\([0-9]*\)$/\1/p' | paste -sd ' ') || true
  facts=$(ask 120 build/gpus 2>&1) || status=$?
  if ((status != 0 && status != 77)); then error="build/gpus ended with exit code $status"; fi

  while IFS=$'\t' read -r key index capability pci uuid state name; do
    case $key in
      runtime) runtime=$index ;;
      driver) driver=$index ;;
      error) error="$index: $capability" ;;
      gpu)
        capability=${capability/./}
        card="$name (sm_$capability, PCI $pci, $uuid)"
        judge_architecture "$capability"
        if [[ ! $obstacle ]]; then
          if ((capability == 90)); then capability=90a; fi # its tensor cores reach their peak with wgmma alone, of sm_90a
          built+=("$capability")
          if [[ $state != cudaSuccess ]]; then
            obstacle="the CUDA runtime cannot use it now ($state): nvidia-smi shows what else does"
          elif [[ $used ]]; then
            obstacle="one is enough; export CUDA_VISIBLE_DEVICES=$uuid chooses it"
          else
            used=$card device=$index architecture=$capability
            continue
          fi
        fi
        others+=("Not used: $card: $obstacle.")
        ;;
    esac
  done <<<"$facts"

  if [[ $used ]]; then
    backend=cuda
    architectures=$(printf '%s\n' "${built[@]}" | sort -nu | paste -sd ';')
    printf '%s\n' "On the GPU: $used" "${others[@]}"
  elif ((${#others[@]})); then
    printf '%s\n' "${others[@]}"
    way_out="The sentence above says why."
    if [[ ${CUDA_VISIBLE_DEVICES+set} ]]; then
      way_out="CUDA_VISIBLE_DEVICES is '$CUDA_VISIBLE_DEVICES': unset it if it hides another card."
    fi
    no_gpu "the days can use none of these cards." "$way_out"
  else
    explain_no_card "${runtime:-$toolkit}" "$driver" "$error"
  fi
}
