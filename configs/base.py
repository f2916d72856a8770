"""Every knob: its flag, default, meaning and bound. The other configs change a few.

The defaults are the settings of the MOON paper (Li et al. 2021, arXiv:2103.16257,
section 4.1), on a data set that needs no download. `python launch.py --help` prints
this list; the knobs are declared in moon_jax/catalog/.

  --config.algorithm=moon                       how clients train; one of fedavg,
                                                fedprox, scaffold, fedsam, mofedsam,
                                                moon, sa_moon, dco_moon, moon_l2,
                                                fedntd, feddecorr, fedlc, fedrs, feddyn,
                                                fednova, fedexp, fedproc, fedproto,
                                                fedper, fedbabu, fedbn, ditto, median,
                                                trimmed_mean, krum,
                                                decentralized_fedavg,
                                                decentralized_moon, solo, centralized
  --config.model=mlp                            the network; one of mlp, moon_cnn,
                                                tutorial_cnn, dco_cnn, cnn_transformer,
                                                resnet18, resnet50, mobilenet_v2
  --config.seed=0                               of every random draw; in [0, 2147483647]
  --config.initial_weights=                     file of the first weights, .safetensors
                                                or .npz; '' draws them
  --config.num_clients=10                       that share the training data; natural:
                                                as named; at least 1
  --config.participation=1.0                    those in a round; a fraction of the
                                                clients in (0, 1], not a count
  --config.num_rounds=100                       communication rounds; at least 1
  --config.local_epochs=10                      passes of a client over its own data; at
                                                least 1
  --config.local_epochs_min=0                   fewest, drawn for each client and round;
                                                0: no draw; at least 0
  --config.fine_tune_epochs=0                   of the global model on each client's
                                                data before its own test; at least 0
  --config.batch_size=64                        examples per local step; at least 1
  --config.drop_last=False                      leave out an epoch's last batch if it is
                                                not full
  --config.client_weight=samples                in the mean of the server; one of
                                                samples, uniform
  --config.batch_norm=averaged                  running statistics; local: each its own;
                                                one of averaged, local
  --config.eval_every_rounds=1                  rounds between tests; at least 1
  --config.checkpoint_every_rounds=10           rounds between saves, the last too; at
                                                least 1
  --config.on_nonfinite=stop                    at NaN or Inf; one of stop, skip_client
  --config.logger=tensorboard                   where else records go: tensorboard,
                                                wandb, mlflow; '': nowhere; names of
                                                tensorboard, wandb and mlflow, each
                                                once, with commas between
  --config.data.source=digits                   where the images come from; one of
                                                digits, tfds, npz, imagefolder,
                                                torchvision, folder, records, hdf5,
                                                sqlite, huggingface, leaf, pfllib
  --config.data.name=                           data set of TFDS or torchvision, e.g.
                                                cifar10
  --config.data.dir=                            TFDS folder; '' is $TFDS_DATA_DIR or the
                                                default
  --config.data.path=                           file or folder of the data
  --config.data.test_path=                      file of the test examples
  --config.data.client=                         feature or column that names the user;
                                                '' is none
  --config.data.image=                          name of the images; '' is pixels, image,
                                                ...
  --config.data.label=                          name of the labels; '' is label,
                                                fine_label, ...
  --config.data.test_fraction=0.0               fraction of each class drawn for the
                                                test; 0 if divided already; in [0, 1)
  --config.data.test_seed=0                     seed of the draw of test images; in [0,
                                                2147483647]
  --config.data.image_size=0                    pixels of each side after resizing; 0:
                                                as they are; at least 0
  --config.data.limit=0                         at most so many of each split; 0 is all;
                                                at least 0
  --config.data.validation=0.0                  share of each class that the server
                                                keeps for validation; in [0, 1)
  --config.data.local_test=0.0                  share of each client's examples that
                                                test it, drawn by seed; a share of the
                                                examples in [0, 1)
  --config.partition.name=dirichlet             how clients differ; one of iid,
                                                dirichlet, shards, quantity, noise,
                                                natural
  --config.partition.beta=0.5                   Dirichlet concentration: small is
                                                skewed; above 0
  --config.partition.balance=True               none for who holds M / N examples
  --config.partition.classes_per_client=2       exactly so many each; at least 1
  --config.partition.noise_sigma=0.1            of the last client, in pixel / 255; in
                                                [0, 1]
  --config.partition.min_size=10                examples the smallest client must own;
                                                natural: leaves out others; at least 1
  --config.partition.seed=auto                  of who owns what; auto: seed; in [0,
                                                2147483647]
  --config.augmentation.name=none               of training images; one of none, flip,
                                                crop_flip
  --config.augmentation.padding=reflect         beyond the border; zero: black; one of
                                                reflect, zero
  --config.optimizer.name=sgd                   local, anew each round; one of sgd,
                                                adam, adamw
  --config.optimizer.learning_rate=0.01         of local training; above 0
  --config.optimizer.momentum=0.9               of sgd; in [0, 1)
  --config.optimizer.nesterov=False             look ahead along the momentum
  --config.optimizer.weight_decay=1e-05         coupled, but of adamw; at least 0
  --config.optimizer.schedule=constant          of the rate over rounds; one of
                                                constant, cosine, exponential, step
  --config.optimizer.decay=0.1                  factor of the rate; in (0, 1]
  --config.optimizer.decay_every=50             rounds, until the factor is reached; at
                                                least 1
  --config.server_optimizer.name=sgd            of the mean update; one of sgd, adam,
                                                yogi
  --config.server_optimizer.learning_rate=auto  auto: 1, of adam and yogi 0.01; above 0
  --config.server_optimizer.momentum=0.0        of sgd; above 0: FedAvgM; in [0, 1)
  --config.availability.name=uniform            who can be drawn for a round; one of
                                                uniform, cyclic, by_data, trace
  --config.availability.groups=2                of clients, one a round in turn; at
                                                least 1
  --config.availability.path=                   file of lines client,first round,last
                                                round
  --config.stragglers.fraction=0.0              of the clients of a round, too slow; in
                                                [0, 1)
  --config.stragglers.send=nothing              by the deadline; partial: what they
                                                have; one of nothing, partial
  --config.attack.name=none                     what some of the clients do; one of
                                                none, label_flip, sign_flip, gaussian,
                                                alie, ipm
  --config.attack.fraction=0.1                  of all clients, who attack; in [0, 1)
  --config.attack.scale=1.0                     times the own update, sent back; above 0
  --config.attack.sigma=1.0                     deviation of what is sent; above 0
  --config.attack.epsilon=0.5                   times the mean update, sent back; above
                                                0
  --config.topology.name=ring                   of neighbours; one of ring, grid,
                                                complete, erdos_renyi
  --config.topology.degree=2                    neighbours, below num_clients; even, at
                                                least 2
  --config.topology.edge_probability=0.5        of each pair; in (0, 1]
  --config.fedprox.mu=0.01                      weight of the proximal term; at least 0
  --config.fedsam.rho=0.1                       length of the move uphill before the
                                                gradient; at least 0
  --config.fedsam.adaptive=False                move of each weight in proportion to its
                                                size (FedASAM)
  --config.fedsam.xi=0.2                        what is added to the size of a weight,
                                                if adaptive; at least 0
  --config.mofedsam.rho=0.1                     length of the move uphill before the
                                                gradient; at least 0
  --config.mofedsam.adaptive=False              move of each weight in proportion to its
                                                size (FedASAM)
  --config.mofedsam.xi=0.2                      what is added to the size of a weight,
                                                if adaptive; at least 0
  --config.mofedsam.beta=0.1                    weight of the client's own gradient; in
                                                (0, 1]
  --config.moon.mu=5.0                          weight of the contrastive term; at least
                                                0
  --config.moon.tau=0.5                         temperature of the contrastive term;
                                                above 0
  --config.moon.negative=none                   in place of a last model, if there is
                                                none; one of none, global, init
  --config.moon.similarity_on=representation    features: before the head; one of
                                                representation, features
  --config.moon.num_previous=1                  of a client's last models as negatives;
                                                at least 1
  --config.moon.frozen_mode=evaluation          of the models compared with; one of
                                                evaluation, training
  --config.sa_moon.mu=5.0                       weight of the contrastive term; at least
                                                0
  --config.sa_moon.initial_temperature=1.0      of a client's first step; above 0
  --config.sa_moon.min_temperature=0.001        at most the initial one; above 0
  --config.sa_moon.sigma=0.005                  fall per relative change of the
                                                gradient; in [0, 1]
  --config.sa_moon.scope=client                 keeps its own; server: the round's mean;
                                                one of client, server
  --config.sa_moon.acceptance=steps             losses compared: of two steps, or of a
                                                batch at T and T'; one of steps,
                                                temperatures
  --config.dco_moon.mu=1.0                      weight of both terms, so also of a step;
                                                at least 0
  --config.dco_moon.tau=0.5                     temperature of the contrastive term;
                                                above 0
  --config.dco_moon.theta=0.1                   relative deviation that counts as
                                                straying; above 0
  --config.dco_moon.normalise=False             divide both weights by mu, above 0 then
  --config.dco_moon.initial=plain               of the first round: mu_0 is 0, or mu;
                                                one of plain, mu
  --config.moon_l2.mu=0.1                       weight of the distance of
                                                representations; at least 0
  --config.moon_l2.squared=False                square of the distance in place of the
                                                distance
  --config.fedntd.beta=1.0                      weight of the distillation; at least 0
  --config.fedntd.tau=1.0                       temperature of the distillation; above 0
  --config.feddecorr.beta=0.1                   weight of the penalty on correlations;
                                                at least 0
  --config.feddecorr.scale=code                 scale of the penalty: that of the code
                                                or the paper; one of code, equation
  --config.fedlc.tau=1.0                        weight of the margins of rare classes;
                                                at least 0
  --config.fedlc.least_count=0.0                examples that a class counts for at
                                                least; 0 leaves it out; at least 0
  --config.fedlc.true_class=True                true class in the denominator; the paper
                                                has it not
  --config.fedrs.alpha=0.5                      factor of the logits of missing classes;
                                                in [0, 1]
  --config.fedrs.graded=False                   factors by share of the commonest class,
                                                the code's form
  --config.feddyn.alpha=0.01                    weight of the dynamic regularisation;
                                                above 0
  --config.feddyn.by_size=False                 alpha divided by the relative size of a
                                                client
  --config.feddyn.evaluate=server               tested model: the server's or the
                                                clients' mean; one of server, mean
  --config.fednova.mu=0.0                       weight of the pull to the received
                                                model; at least 0
  --config.fednova.tau_eff=norm                 length of the step: mean norm or mean
                                                steps; one of norm, steps
  --config.fedexp.eps=0.001                     guard of the server step's division;
                                                above 0
  --config.fedexp.eps_decay=1.0                 factor of eps after each round; in (0,
                                                1]
  --config.fedexp.evaluate=last                 model that is tested: the last, or the
                                                mean of two; one of last, mean_of_two
  --config.fedproc.tau=1.0                      temperature of the term of the
                                                prototypes; above 0
  --config.fedproc.rise=100.0                   rounds until the cross entropy counts
                                                alone; above 0
  --config.fedproto.lam=1.0                     weight of the distance to the prototype;
                                                at least 0
  --config.fedproto.distance=mean               squared distance over the dimensions;
                                                one of mean, sum
  --config.fedper.layers=                       names of those that stay with a client;
                                                '' is the output layer
  --config.ditto.lam=1.0                        weight of the pull to the received
                                                model; at least 0
  --config.ditto.epochs=auto                    of the personal model's training; auto:
                                                local_epochs; at least 1
  --config.ditto.learning_rate=auto             of the personal model; auto: the
                                                round's; above 0
  --config.trimmed_mean.trim=0.1                share left out at each end; in [0, 0.5)
  --config.krum.num_byzantine=1                 clients that may send anything; at least
                                                0
  --config.krum.num_selected=1                  models averaged; above 1: multi-Krum; at
                                                least 1
  --config.mlp.width=128                        units of each hidden layer; at least 1
  --config.mlp.representation=64                units of the representation; at least 1
  --config.moon_cnn.head=mlp                    projection head; none: features
                                                represent; one of mlp, none
  --config.moon_cnn.head_width=84               units of the head's hidden layer; at
                                                least 1
  --config.moon_cnn.representation=256          units of the representation, after a
                                                head; at least 1
  --config.cnn_transformer.layers=6             of the encoder; at least 1
  --config.cnn_transformer.heads=8              of attention, in every layer; a divisor
                                                of 256
  --config.cnn_transformer.feedforward=2048     hidden units of a layer; at least 1
  --config.cnn_transformer.dropout=0.1          after convolutions, in the encoder; in
                                                [0, 1)
  --config.resnet.head=mlp                      projection head; none: features
                                                represent; one of mlp, none
  --config.resnet.head_width=auto               units of the head's hidden layer; auto:
                                                as before; at least 1
  --config.resnet.representation=256            units of the representation, after a
                                                head; at least 1
  --config.resnet.norm=batch                    normalisation; group: 2 groups of
                                                channels; one of batch, group
  --config.execution.devices=auto               of a process, that share the lanes;
                                                'auto' or a count of at least 1
  --config.execution.lanes=auto                 clients trained side by side; 'auto' or
                                                a count of at least 1
  --config.execution.convolution=auto           form of the convolutions; same values up
                                                to rounding; one of auto, library,
                                                banded, fused, direct, winograd
  --config.execution.cache_mib=2048             for frozen representations; 0: none; at
                                                least 0
  --config.execution.client_store=auto          clients' memories between rounds; auto:
                                                on the device up to 256 MiB in all, or
                                                if a round has a quarter of all clients;
                                                one of auto, device, disk
  --config.execution.dtype=float32              of the networks' arithmetic; one of
                                                float32, bfloat16
  --config.execution.matmul_precision=default   as in JAX; one of default, high, highest
  --config.execution.deterministic=False        on GPUs: the same bits in every run,
                                                slower
  --config.execution.compile_cache=auto         private folder for compiled programs;
                                                auto: the user's; off
  --config.execution.profile=False              trace the second round, say where its
                                                time went
"""

from moon_jax import config as config_lib


def get_config():
  """Returns the defaults, an ml_collections.ConfigDict; change what you like."""
  return config_lib.defaults()
